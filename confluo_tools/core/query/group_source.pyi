# C functions only; no Python interface.
