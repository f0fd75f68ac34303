"""Runs that go on: their control sockets, their status, changes while they run, and their metrics."""
