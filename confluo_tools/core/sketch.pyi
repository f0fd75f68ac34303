# Sketches live inside roll-ups; nothing here is for Python.
