# C structs only; no Python interface.
