# Columns of results are filled from C; nothing here is for Python.
