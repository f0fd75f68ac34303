"""Replay of switch queues: sending times through a topology (DETER, section 3.4)."""
