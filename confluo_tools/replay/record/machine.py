"""The recorder: merges trace events and packets by time, and gives each to its end of a connection.

A send call says only at its end to which socket it belongs, so events wait until the calls before them are known.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from confluo_tools.formats.block_builder import address_columns
from confluo_tools.kernel.socket_option_trace import MADE
from confluo_tools.replay.record import trace_events as ev
from confluo_tools.replay.record.accepts import Accepts
from confluo_tools.replay.record.call_pieces import CallPiece, CallPieces
from confluo_tools.replay.record.end_recorder import RST, SYN, EndRecorder, Packet, role_of
from confluo_tools.replay.record.polls import Poll, Polls
from confluo_tools.replay.record.socket_options import SocketOptions, problem_of
from confluo_tools.replay.recording.kinds import Call, Kind, Note, Role, Timer
from confluo_tools.replay.recording.run_writer import THRESHOLD
from confluo_tools.replay.recording.socket_options import OptionValue, option_of

LAG = 100_000_000  # ns that an event waits for packets of the rings
HOLD = 2_000_000_000  # ns that events wait for a call before them
MAX_STRANGERS = 4096
MAX_ENDS = 1 << 16  # that are recorded at a time; others are counted
IDLE = 10_000_000_000  # ns after which an end without a socket is given up
UNSURE = 1_000_000_000  # ns after a step of the wall clock: packets of before may still come
CLOCK_SET = "the clock of the host was set"
READ_OR_WRITE = 5  # POLLIN | POLLOUT
LINGER = 300_000_000  # ns that an end is kept after its socket has closed
ESTABLISHED, SYN_SENT, FIN_WAIT1, CLOSE, LAST_ACK, LISTEN = 1, 2, 4, 7, 9, 10
AF_INET6 = 10
_MAPPED = bytes(10) + b"\xff\xff"
Key = tuple[bytes, int, bytes, int]  # address and port of this end, of the other end
Item = tuple[Any, ...]
PIECE = 100  # in place of an event: a `CallPiece`


@dataclass(slots=True)
class ProbeEvent:
    """TCP processes a packet.  ``una``: what is acknowledged; ``next_una``: at the next one, -1 if not known yet."""

    sk: int
    length: int
    una: int
    source: bytes
    destination: bytes
    src_port: int
    dst_port: int
    next_una: int = -1


class Machine:
    """Takes events and packets, emits rows.

    ``local``: whether an address is one of this host.  ``base``: wall clock less monotonic clock, ns.
    ``phase``: place of a monotonic time among the ticks, ns.  ``follow`` gets each process with a recorded connection.
    ``timers``: {address of a function: `Timer`}.  ``sizes``: bytes of a TCP socket in the kernel, of IPv4 and of IPv6.
    """

    def __init__(
        self,
        emit: Callable[[dict[str, Any]], object],
        local: Callable[[bytes], bool],
        *,
        base: int,
        phase: Callable[[int], int],
        follow: Callable[[int], None],
        timers: dict[int, Timer],
        sizes: tuple[int, int],
        ports: frozenset[int] = frozenset(),
        headers: bool = False,
        cookies: int = 0,
        threshold: int = THRESHOLD,
    ) -> None:
        self._emit, self._local, self._base = emit, local, base
        self._phase, self._follow = phase, follow
        self._timers, self._sizes, self._ports = timers, sizes, ports
        self._headers, self._threshold, self._cookies = headers, threshold, cookies
        self._calls = CallPieces()
        self._accepts = Accepts()
        self._fresh: list[Item] = []
        self._items: list[Item] = []
        self._ends: dict[Key, EndRecorder] = {}
        self._by_sk: dict[int, EndRecorder] = {}
        self._strangers: dict[Key, None] = {}  # connections of packets without an end
        self._sks: list[int] = []  # sorted
        self._end_of: dict[int, int] = {}  # first byte after a socket
        self._connects: dict[int, tuple[int, bytes, int]] = {}  # socket: when it began to connect, and to where
        self._shutdowns: dict[int, int] = {}
        self._probes: dict[int, ProbeEvent] = {}  # the last one of a socket
        self._polls = Polls()
        self._closing: list[EndRecorder] = []
        self._reset: int = 0  # the socket that got a reset
        self.made = 0
        self._swept = self._now = self._at = self._stepped = 0
        self.options = SocketOptions()
        self.events = self.unknown = self.excess = 0

    @property
    def live(self) -> int:
        """Ends that are recorded now."""
        return len(self._ends)

    # -- the stream

    def feed(self, events: Iterable[Item], packets: Iterable[Item], now: int) -> None:
        """Add what was read; everything before ``now`` (monotonic ns) that the kernel's buffers held is in it."""
        fresh = self._fresh
        fresh.extend(events)
        base = self._base
        fresh.extend([(p[0] - base, ev.PACKET, p) for p in packets])
        fresh.sort(key=itemgetter(0))
        cut = bisect_right(fresh, now, key=itemgetter(0))
        for item in fresh[:cut]:
            self._take(item)
        del fresh[:cut]
        self._items.sort(key=itemgetter(0))  # a receive call is known at its end

    def _take(self, item: Item) -> None:
        """Turn events of calls into pieces of calls."""
        what = item[1]
        self.events += 1
        piece: CallPiece | None
        if what == ev.SEND_CHUNK:
            piece = self._calls.send_chunk(item[0], item[2], item[3], opens=not item[4] or item[5] >= item[6])
        elif what == ev.RECV_CHUNK:
            self._calls.recv_chunk(item[0], item[2], item[3])
            return
        elif what == ev.SEND_END:
            piece = self._calls.send_end(item[0], item[2], item[3], item[4], item[5])
            self._uses(item[2], item[3])
        elif what == ev.RECV_END:
            piece = self._calls.recv_end(item[0], item[2], item[3], item[4], item[5])
            self._uses(item[2], item[3])
        elif what == ev.PROBE:
            self._items.append((item[0], what, self._probe(item)))
            return
        elif what == ev.POLL:
            self._items += [(poll.ts, what, poll) for poll in self._polls.begins(item[0], item[2])]
            return
        elif what == ev.POLL_END:
            self._polls.ends(item[0], item[2], item[3])
            return
        else:
            self._items.append(item)
            return
        if piece is not None:
            self._items.append((piece.ts, PIECE, piece))

    def _probe(self, item: Item) -> ProbeEvent:
        probe = ProbeEvent(*item[3:])
        before = self._probes.pop(probe.sk, None)
        if before is not None:
            before.next_una = probe.una
        elif len(self._probes) >= MAX_ENDS:
            del self._probes[next(iter(self._probes))]
        self._probes[probe.sk] = probe
        return probe

    def step(self, now: int, *, all: bool = False) -> None:
        """Process events up to ``now``, less the time that they wait; or ``all`` of them."""
        self._now = now
        items, done = self._items, 0
        for item in items:
            if not all and item[0] > now - LAG:
                break
            if item[1] == PIECE and not item[2].known:
                if not all and item[0] > now - HOLD:
                    break
                if not self._calls.guess(item[2]):
                    self.unknown += 1
                    done += 1
                    continue
            self._process(item)
            done += 1
        del items[:done]
        self._end_closed(now)

    def _process(self, item: Item) -> None:
        ts, what = item[0], item[1]
        self._at = ts
        if what == ev.PACKET:
            self._packet(Packet(*item[2]))
        elif what == PIECE:
            self._piece(item[2])
        elif what == ev.PROBE:
            probe = item[2]
            end = self._by_sk.get(probe.sk) or self._bind_probe(ts, probe)
            if end is not None:
                end.probe(ts + self._base, probe.length, probe.next_una)
        elif what == ev.STATE:
            self._state(item)
        elif what == ev.OPTION:
            self._option(*item)
        elif what in (ev.TIMER, ev.HRTIMER):
            end = self._owner(item[3])
            if end is not None:
                end.event(ts + self._base, Kind.TIMER, timer=self._timers.get(item[4], 0))
        elif what == ev.POLL:
            self._polled(item[2])
        elif what == ev.ACCEPTED:
            self._accepted(ts, item[2])
        elif what == ev.SHUT:
            self._shutdowns[item[2]] = item[3]
        elif what == ev.SHUT_END:
            self._shutdowns.pop(item[2], None)
        else:
            self._note(item)

    def _accepted(self, ts: int, pid: int) -> None:
        found = self._accepts.accepted(pid)
        if found is not None:
            end, certain = found
            end.event(ts + self._base, Kind.CALL, call=Call.ACCEPT, notes=0 if certain else Note.GUESSED)

    def _uses(self, pid: int, sk: int) -> None:
        poll = self._polls.used(pid, sk)
        if poll is not None:
            self._items.append((poll.ts, ev.POLL, poll))

    def _polled(self, poll: Poll) -> None:
        """A process polls a socket; a poll of a full socket changes what TCP does later."""
        end = self._by_sk.get(poll.sk)
        if end is not None:
            end.event(poll.ts + self._base, Kind.POLL, bytes=poll.result, flags=READ_OR_WRITE)

    def _option(self, ts: int, _: int, sk: int, level: int, option: int, value: bytes) -> None:
        """A program sets an option of a socket."""
        end = self._by_sk.get(sk)
        if end is None or level == MADE:
            self.options.set(sk, level, option, value)
            return
        end.problem = end.problem or problem_of(level, option)
        found = option_of(level, option, value)
        if found is not None:
            values = {"flags": found.flags, "value": found.value}
            end.event(ts + self._base, Kind.CALL, call=Call.SETSOCKOPT, **values)

    def _options_before(self, end: EndRecorder, ts: int, found: tuple[list[OptionValue], str]) -> None:
        """The options that the socket of ``end`` had before its connection."""
        for option in found[0]:
            end.emit({"kind": Kind.SETTING, "ts": ts, **option.setting()})
        end.problem = end.problem or found[1]

    def _note(self, item: Item) -> None:
        end = self._by_sk.get(item[3])
        if item[1] == ev.RESET_SEEN:
            self._reset = item[3]
        elif end is not None and item[1] == ev.RETRANSMIT:
            end.event(item[0] + self._base, Kind.RETRANSMIT)
        elif end is not None:
            end.event(item[0] + self._base, Kind.STATE, value=item[4])

    # -- packets

    def _packet(self, p: Packet) -> None:
        out = self._ends.get((p.src, p.src_port, p.dst, p.dst_port))
        into = self._ends.get((p.dst, p.dst_port, p.src, p.src_port))
        if p.flags & SYN and self._wanted_port((p.src, p.src_port, p.dst, p.dst_port)):
            if (out is None or (out.isn not in (-1, p.seq))) and self._local(p.src):
                out = self._new(p, sender=True)
            if (into is None or (into.peer_isn not in (-1, p.seq))) and self._local(p.dst):
                into = self._new(p, sender=False)
        if into is None:
            self._strange(p)
        if out is not None and self._same_way(out, p):
            out.sent(p)
            self._ends_by_reset(out, p)
        if into is not None and self._same_way(into, p):
            into.arrived(p)
            self._ends_by_reset(into, p)

    def _strange(self, p: Packet) -> None:
        """Remember a connection that began before: if TCP here processes its packets, it is one of this namespace."""
        if len(self._strangers) >= MAX_STRANGERS:
            del self._strangers[next(iter(self._strangers))]
        self._strangers[p.dst, p.dst_port, p.src, p.src_port] = None

    def _same_way(self, end: EndRecorder, p: Packet) -> bool:
        """Whether this is the interface of the connection: a bridge shows its packets again."""
        if end.iface < 0:
            end.iface = p.iface
        return end.iface == p.iface

    def _ends_by_reset(self, end: EndRecorder, p: Packet) -> None:
        if p.flags & RST and not end.sk:
            self._close(end, p.ts)

    def _new(self, p: Packet, *, sender: bool) -> EndRecorder:
        key = (p.src, p.src_port, p.dst, p.dst_port) if sender else (p.dst, p.dst_port, p.src, p.src_port)
        end = self._make(key, role_of(p, sender=sender), earlier=False)
        if sender and end.place["role"] == Role.CLIENT:
            self._begin_client(end, key, p.ts)
        else:
            end.begin(p.ts)
            self._began(end, p.ts - self._base)
            self._options_before(end, p.ts, self.options.inherited(key[1]))
        return end

    def _begin_client(self, end: EndRecorder, key: Key, ts: int) -> None:
        found = [(when, sk) for sk, (when, *to) in self._connects.items() if to == [key[2], key[3]]]
        when, sk = min(found) if found else (ts - self._base, 0)
        end.begin(when + self._base)
        self._began(end, when)
        if sk:
            del self._connects[sk]
            self._options_before(end, when + self._base, self.options.connects(sk))
            end.event(when + self._base, Kind.CALL, call=Call.CONNECT)

    def _began(self, end: EndRecorder, ts: int) -> None:
        end.setting(ts + self._base, "began", ts)
        end.setting(ts + self._base, "phase", self._phase(ts))

    def _make(self, key: Key, role: int, *, earlier: bool) -> EndRecorder:
        old = self._ends.pop(key, None)
        if old is not None:
            self._finish(old, ended=True)
        self.made += 1
        place = {
            **address_columns("src", _text(key[0])),
            **address_columns("dst", _text(key[2])),
            "src_port": key[1],
            "dst_port": key[3],
            "proto": 6,
            "cookie": self._cookies | self.made,
            "role": role,
        }
        end = EndRecorder(place, self._emit, threshold=self._threshold, headers=self._headers, earlier=earlier)
        end.key = key  # type: ignore[attr-defined]
        if min(self._now, self._at) < self._stepped:
            end.problem = end.problem or CLOCK_SET
        self._ends[key] = end
        return end

    # -- sockets

    def _bind(self, end: EndRecorder, sk: int, family: int) -> None:
        old = self._by_sk.get(sk)
        if old is end:
            return
        if old is not None:
            self._unbind(old)
        end.sk = sk
        self._by_sk[sk] = end
        insort(self._sks, sk)
        self._end_of[sk] = sk + self._sizes[family == AF_INET6]

    def _unbind(self, end: EndRecorder) -> None:
        self._accepts.gone(end)
        if self._by_sk.pop(end.sk, None) is not None:
            self._sks.remove(end.sk)
            del self._end_of[end.sk]
        end.sk = 0

    def _owner(self, timer: int) -> EndRecorder | None:
        """The end that has this timer in its socket."""
        place = bisect_right(self._sks, timer)
        if not place:
            return None
        sk = self._sks[place - 1]
        return self._by_sk[sk] if timer < self._end_of[sk] else None

    def _bind_probe(self, ts: int, probe: ProbeEvent) -> EndRecorder | None:
        family = probe.source[0]
        key = (_socket_address(probe.source), probe.src_port, _socket_address(probe.destination), probe.dst_port)
        end = self._ends.get(key)
        if end is None and key in self._strangers and self._wanted_port(key) and self._local(key[0]):
            del self._strangers[key]
            end = self._make(key, 0, earlier=True)
            end.begin(ts + self._base)
        if end is not None:
            self._bind(end, probe.sk, family)
        return end

    def _wanted_port(self, key: Key) -> bool:
        if self._ports and key[1] not in self._ports and key[3] not in self._ports:
            return False
        if len(self._ends) < MAX_ENDS:
            return True
        self.excess += 1
        return False

    def _state(self, item: Item) -> None:
        ts, sk, old, new = item[0], item[3], item[11], item[12]
        key = (_plain(item[9]), item[4], _plain(item[10]), item[5])
        if new == LISTEN:
            self.options.listens(sk, key[1])
            return
        if new == SYN_SENT:
            self._connects[sk] = (ts, key[2], key[3])
            return
        end = self._by_sk.get(sk)
        if end is None:
            self._connects.pop(sk, None)
            end = self._ends.get(key)
            if end is None or end.sk:
                return
            self._bind(end, sk, item[6])
        wall = ts + self._base
        if new == ESTABLISHED:
            end.probed = True
            if end.place["role"] == Role.SERVER:
                self._accepts.established(end)
            return
        if new in (FIN_WAIT1, LAST_ACK) or (new == CLOSE and old == ESTABLISHED and self._reset != sk):
            how = self._shutdowns.get(item[2])
            end.event(wall, Kind.CALL, call=Call.CLOSE if how is None else Call.SHUTDOWN, flags=how or 0)
        end.unprobed(wall)
        if new == CLOSE:
            self._close(end, wall)

    def _piece(self, piece: CallPiece) -> None:
        end = self._by_sk.get(piece.sk)
        if end is not None and piece.bytes is not None:
            self._follow(piece.pid)
            self._accepts.gone(end)
            end.call(piece.ts + self._base, piece)

    # -- ends of connections

    def _close(self, end: EndRecorder, ts: int) -> None:
        if not end.closing:
            end.closing = ts
            self._closing.append(end)
        self._unbind(end)

    def _sweep(self, now: int) -> None:
        """Give up ends that never got a socket: SYNs that no server accepted."""
        if now - self._swept > IDLE:
            self._swept = now
            before = now + self._base - IDLE
            for end in self._ends.values():
                if not end.sk and not end.closing and end.last < before:
                    end.problem = end.problem or "it was not established"
                    self._close(end, end.last)

    def _end_closed(self, now: int) -> None:
        self._sweep(now)
        before = now + self._base - LAG - LINGER
        over = [end for end in self._closing if end.closing < before]
        if over:
            self._closing = [end for end in self._closing if end.closing >= before]
            for end in over:
                if self._ends.get(end.key) is end:  # type: ignore[attr-defined]
                    del self._ends[end.key]  # type: ignore[attr-defined]
                    self._finish(end, ended=True)

    def _finish(self, end: EndRecorder, *, ended: bool) -> None:
        self._unbind(end)
        end.finish(end.last, ended=ended)

    def clock_step(self, by: int, now: int) -> None:
        """The wall clock was set: from now on packets have other times, while events go on.

        Connections of now cannot be replayed, nor can those that begin soon: their first packets may have been
        stamped before.
        """
        self._base += by
        self._stepped = now + UNSURE
        for end in self._ends.values():
            end.problem = end.problem or CLOCK_SET

    def lost(self, count: int, now: int) -> None:
        """``count`` trace events or packets were lost: every connection of now may lack some."""
        for end in self._ends.values():
            end.cut(now + self._base, count)

    def finish(self, now: int) -> None:
        """Process all that is left, and end the recording of all ends."""
        self.step(now, all=True)
        for end in self._ends.values():
            self._finish(end, ended=bool(end.closing))
        self._ends.clear()


def _plain(address: bytes) -> bytes:
    """IPv4 as 4 bytes, also if mapped into IPv6."""
    return address[12:] if address[:12] == _MAPPED else address


def _socket_address(data: bytes) -> bytes:
    """The address in a struct sockaddr_in or sockaddr_in6."""
    return _plain(data[8:24]) if data[0] == AF_INET6 else data[4:8]


def _text(address: bytes) -> str:
    import socket

    return socket.inet_ntop(socket.AF_INET6 if len(address) == 16 else socket.AF_INET, address)
