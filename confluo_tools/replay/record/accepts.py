"""Which connection an accept call returned: the kernel's event of the call names none.

A listener hands over its connections in the order in which they were established.
"""

from __future__ import annotations

from confluo_tools.replay.record.end_recorder import EndRecorder

MAX_PROCESSES = 1 << 16


class Accepts:
    """Ends of servers that were established and not accepted yet; `gone` removes one."""

    def __init__(self) -> None:
        self._waiting: dict[EndRecorder, None] = {}  # in their order
        self._port_of: dict[int, int] = {}  # process: port of the connection that it accepted last

    def established(self, end: EndRecorder) -> None:
        self._waiting[end] = None

    def gone(self, end: EndRecorder) -> None:
        self._waiting.pop(end, None)

    def accepted(self, pid: int) -> tuple[EndRecorder, bool] | None:
        """The end that a process has accepted, and whether that is certain; none: it is not recorded."""
        if not self._waiting:
            return None
        port = self._port_of.get(pid)
        first = next(iter(self._waiting))
        end = next((end for end in self._waiting if end.place["src_port"] == port), first)
        certain = len({end.place["src_port"] for end in self._waiting}) == 1
        if len(self._port_of) >= MAX_PROCESSES:
            del self._port_of[next(iter(self._port_of))]
        self._port_of[pid] = end.place["src_port"]
        del self._waiting[end]
        return end, certain
