"""The kernel's trace events that the recorder uses, and their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.kernel.tracefs import WantedEvent, event_shape, open_instance

if TYPE_CHECKING:
    from confluo_tools.core.kernel.trace_reader import TraceReader
    from confluo_tools.kernel.tracefs import TraceInstance

PACKET = -1  # in place of an event: a packet of the rings
SEND_CHUNK, RECV_CHUNK, SEND_END, RECV_END, PROBE, STATE = range(6)
RETRANSMIT, CONGESTION, TIMER, HRTIMER, RESET_SEEN, SHUT, SHUT_END = range(6, 13)
BUFFER = 4096  # KiB of each CPU
TIMERS = ("tcp_write_timer", "tcp_delack_timer", "tcp_keepalive_timer")
HRTIMERS = ("tcp_compressed_ack_kick", "tcp_pace_kick")
_PLACE = ("skaddr", "sport", "dport", "family", "saddr", "daddr", "saddr_v6", "daddr_v6")
# (system, event, filter, fields, needed), in the order of the numbers above
_EVENTS: tuple[tuple[str, str, str, tuple[str, ...], bool], ...] = (
    ("tcp", "tcp_sendmsg_locked", "", ("msg_left",), True),
    ("tcp", "tcp_rcv_space_adjust", "", ("skaddr",), True),
    ("sock", "sock_send_length", "protocol == 6", ("sk", "ret", "flags"), True),
    ("sock", "sock_recv_length", "protocol == 6", ("sk", "ret", "flags"), True),
    ("tcp", "tcp_probe", "", ("skaddr", "data_len", "saddr", "daddr", "sport", "dport"), True),
    ("sock", "inet_sock_set_state", "protocol == 6", (*_PLACE, "oldstate", "newstate"), True),
    ("tcp", "tcp_retransmit_skb", "", ("skaddr",), True),
    ("tcp", "tcp_cong_state_set", "", ("skaddr", "cong_state"), True),
    ("timer", "timer_expire_entry", "", ("timer", "function"), True),
    ("timer", "hrtimer_expire_entry", "", ("hrtimer", "function"), False),
    ("tcp", "tcp_receive_reset", "", ("skaddr",), False),
    ("syscalls", "sys_enter_shutdown", "", ("how",), False),
    ("syscalls", "sys_exit_shutdown", "", ("ret",), False),
)


class RecorderTrace:
    """The instance of tracefs of a recorder, and its reader.  Raises ConfluoError."""

    def __init__(self) -> None:
        from confluo_tools.core.kernel.trace_reader import TraceReader

        wanted = [WantedEvent(s, n, _filter(n) or f, needed) for s, n, f, _, needed in _EVENTS]
        self.instance: TraceInstance = open_instance("record", wanted, "the kernel's TCP", BUFFER)
        try:
            shapes = [
                event_shape(self.instance.formats[name], fields)
                if name in self.instance.formats
                else (0, [(0, 0, False)] * len(fields))
                for _, name, _, fields, _ in _EVENTS
            ]
        except BaseException:
            self.instance.close()
            raise
        i = self.instance
        self.reader: TraceReader = TraceReader(i.traces, i.header, i.page, shapes)


def _filter(name: str) -> str:
    """Of timers: only those of TCP; the kernel compares addresses of functions."""
    if name == "timer_expire_entry":
        return " || ".join(f"function.function == {timer}" for timer in TIMERS)
    if name == "hrtimer_expire_entry":
        return " || ".join(f"function.function == {timer}" for timer in HRTIMERS)
    return ""
