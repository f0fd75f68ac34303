"""Record TCP connections lightly, replay them on the real stack, look inside (DETER)."""
