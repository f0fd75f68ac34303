# The states of roll-ups are C structs; nothing here is for Python.
