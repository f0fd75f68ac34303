"""The kernel's trace events that the recorder uses, and their fields."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from confluo_tools.kernel.tracefs import WantedEvent, event_shape, open_instance

if TYPE_CHECKING:
    from confluo_tools.core.kernel.trace_reader import TraceReader
    from confluo_tools.kernel.tracefs import TraceInstance

PACKET = -1  # in place of an event: a packet of the rings
SEND_CHUNK, RECV_CHUNK, SEND_END, RECV_END, PROBE, STATE = range(6)
RETRANSMIT, CONGESTION, TIMER, HRTIMER, RESET_SEEN, SHUT, SHUT_END = range(6, 13)
POLL, POLL_END, ACCEPTED = 13, 14, 15
OPTION = 50  # of `SocketOptionTrace`
MAX_FOLLOWED = 4096  # processes
BUFFER, POLL_BUFFER = 64 << 10, 8 << 10  # KiB of all CPUs
MIN_BUFFER, MAX_BUFFER = 1 << 10, 16 << 10  # KiB of each CPU
TIMERS = ("tcp_write_timer", "tcp_delack_timer", "tcp_keepalive_timer")
HRTIMERS = ("tcp_compressed_ack_kick", "tcp_pace_kick")
_PLACE = ("skaddr", "sport", "dport", "family", "saddr", "daddr", "saddr_v6", "daddr_v6")
# (system, event, filter, fields, needed), in the order of the numbers above
_EVENTS: tuple[tuple[str, str, str, tuple[str, ...], bool], ...] = (
    ("tcp", "tcp_sendmsg_locked", "", ("msg_left", "skb_addr", "skb_len", "size_goal"), True),
    ("tcp", "tcp_rcv_space_adjust", "", ("skaddr", "sport", "dport"), True),
    ("sock", "sock_send_length", "protocol == 6", ("sk", "ret", "flags"), True),
    ("sock", "sock_recv_length", "protocol == 6", ("sk", "ret", "flags"), True),
    ("tcp", "tcp_probe", "", ("skaddr", "data_len", "snd_una", "saddr", "daddr", "sport", "dport"), True),
    ("sock", "inet_sock_set_state", "protocol == 6", (*_PLACE, "oldstate", "newstate"), True),
    ("tcp", "tcp_retransmit_skb", "", ("skaddr", "sport", "dport"), True),
    ("tcp", "tcp_cong_state_set", "", ("skaddr", "cong_state", "sport", "dport"), True),
    ("timer", "timer_expire_entry", "", ("timer", "function"), True),
    ("timer", "hrtimer_expire_entry", "", ("hrtimer", "function"), False),
    ("tcp", "tcp_receive_reset", "", ("skaddr", "sport", "dport"), False),
    ("syscalls", "sys_enter_shutdown", "", ("how",), False),
    ("syscalls", "sys_exit_shutdown", "", ("ret",), False),
)
_POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2")
_ACCEPTS = ("sys_exit_accept", "sys_exit_accept4")
_EPOLL_CTL, _ADDS_OR_CHANGES = "sys_enter_epoll_ctl", "op != 2"  # EPOLL_CTL_DEL does not look at the socket


class RecorderTrace:
    """The instances of tracefs of a recorder, and their readers.  Raises ConfluoError.

    Polls and accept calls are traced of the processes that `follow` names and of those that they start; first of this
    process.
    """

    def __init__(self, ports: frozenset[int]) -> None:
        from confluo_tools.core.kernel.trace_reader import TraceReader

        wanted = [WantedEvent(s, n, _filter(n, f, fields, ports), needed) for s, n, f, fields, needed in _EVENTS]
        self.instance: TraceInstance = open_instance("record", wanted, "the kernel's TCP", _share(BUFFER))
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
        self._reader = TraceReader(i.traces, i.header, i.page, shapes)
        self._followed: set[int] = set()
        try:
            self._polls = self._open_polls()
        except BaseException:
            self.instance.close()
            raise

    def _open_polls(self) -> tuple[TraceInstance, list[int], TraceReader]:
        """The instance for polls and accept calls, what each of its events is, and its reader."""
        from confluo_tools.core.kernel.trace_reader import TraceReader

        names = [f"sys_{side}_{name}" for name in _POLLS for side in ("enter", "exit")]
        wanted = [WantedEvent("syscalls", name, needed=False) for name in names]
        wanted += [WantedEvent("syscalls", name, "ret >= 0", needed=False) for name in _ACCEPTS]
        wanted.append(WantedEvent("syscalls", _EPOLL_CTL, _ADDS_OR_CHANGES, needed=False))
        instance = open_instance("record", wanted, "polls", _share(POLL_BUFFER))
        try:
            kinds = [
                ACCEPTED if name in _ACCEPTS else POLL if "enter" in name else POLL_END for name in instance.formats
            ]
            fields: dict[int, tuple[str, ...]] = {POLL: (), POLL_END: ("ret",), ACCEPTED: ()}
            texts = zip(kinds, instance.formats.values(), strict=True)
            shapes = [event_shape(text, fields[kind]) for kind, text in texts]
            reader = TraceReader(instance.traces, instance.header, instance.page, shapes)
        except BaseException:
            instance.close()
            raise
        return instance, kinds, reader

    def follow(self, pid: int) -> None:
        """Trace the polls of this process as well."""
        if pid not in self._followed and len(self._followed) < MAX_FOLLOWED:
            self._followed.add(pid)
            self._polls[0].follow(pid)

    def begin(self) -> None:
        self.follow(os.getpid())
        self._polls[0].begin()
        self.instance.begin()

    def read(self) -> list[tuple[Any, ...]]:
        """The events that the buffers hold; their second element is one of the numbers above."""
        _, kinds, reader = self._polls
        polls = [(ts, kinds[what], *rest) for ts, what, *rest in reader.read()]
        return self._reader.read() + polls

    def lost(self) -> int:
        """Events lost because a buffer was full."""
        return self.instance.lost() + self._polls[0].lost()

    def close(self) -> None:
        self.instance.close()
        self._polls[0].close()


def _filter(name: str, text: str, fields: tuple[str, ...], ports: frozenset[int]) -> str:
    """Of timers: only those of TCP; the kernel compares addresses of functions.  Of others: ``text``, and the ports."""
    if name == "timer_expire_entry":
        return " || ".join(f"function.function == {timer}" for timer in TIMERS)
    if name == "hrtimer_expire_entry":
        return " || ".join(f"function.function == {timer}" for timer in HRTIMERS)
    tests = [f"{side} == {port}" for port in sorted(ports) for side in ("sport", "dport")]
    if tests and "sport" in fields:
        either = f"({' || '.join(tests)})"
        return f"{text} && {either}" if text else either
    return text


def _share(total: int) -> int:
    """KiB of each CPU of a buffer of ``total``."""
    return min(max(total // (os.cpu_count() or 1), MIN_BUFFER), MAX_BUFFER)
