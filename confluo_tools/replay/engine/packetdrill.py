"""A recorded connection as a script for packetdrill: what one end got and called, and what it is expected to send.

The language: https://github.com/google/packetdrill, Syntax.md.  Sequence numbers count from the SYN, as there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from confluo_tools.errors import ConfluoError
from confluo_tools.replay.engine import script as inputs
from confluo_tools.replay.engine.decoupled import fed_steps
from confluo_tools.replay.engine.feed import Feed, SynOptions, feed_of
from confluo_tools.replay.engine.segments import ACK, SYN, SentPacket
from confluo_tools.replay.engine.settings import CHOSEN, HEADERS, SYSCTL, end_settings, number
from confluo_tools.replay.engine.similarity import recorded_packets
from confluo_tools.replay.recording import ConnectionEnd
from confluo_tools.replay.recording.socket_options import IPPROTO_TCP, NAMES, SOL_SOCKET, OptionValue, congestion_name

TOLERANCE = 10_000  # us: two ticks and a half at HZ=250
FIRST = 3  # descriptor of the first socket
_FLAGS = ((SYN, "S"), (1, "F"), (4, "R"), (8, "P"), (32, "U"), (64, "E"), (128, "W"), (256, "A"))
_ECN = {1: "[ect1] ", 2: "[ect0] ", 3: "[ce] "}
_MESSAGES = {0x1: "MSG_OOB", 0x2: "MSG_PEEK", 0x20: "MSG_TRUNC", 0x40: "MSG_DONTWAIT", 0x100: "MSG_WAITALL"}
_MESSAGES |= {0x4000: "MSG_NOSIGNAL", 0x8000: "MSG_MORE"}
_LEVELS = {SOL_SOCKET: "SOL_SOCKET", IPPROTO_TCP: "SOL_TCP"}
_NEW = 44  # options of TCP from this number on have no name in packetdrill
_HOW = ("SHUT_RD", "SHUT_WR", "SHUT_RDWR")


class Line(NamedTuple):
    """An event: ``at`` in us after the begin; a comment if it has no time of its own."""

    at: int
    text: str
    comment: bool = False


def packetdrill_script(end: ConnectionEnd) -> Iterator[str]:
    """The lines of the script of one end.  Raises ConfluoError if the recording has not enough for it."""
    if end.problems:
        raise ConfluoError("; ".join(end.problems), where=str(end.flow))
    if not 0 < end.packets_sent == len(end.headers_sent):
        hint = "record with --level headers, or write a replay: confluo-replay FILE -w again.ml"
        raise ConfluoError("there are no headers of its packets", where=str(end.flow), hint=hint)
    feed = feed_of(end, end)
    yield from _head(end, feed)
    latest = 0
    for line in _lines(end, feed):
        if line.comment:
            yield f"// {line.text}"
            continue
        now = max(line.at, latest)
        yield f"+{(now - latest) / 1e6:.6f} {line.text}"
        latest = now


def end_for_script(ends: list[ConnectionEnd], chosen: bool) -> ConnectionEnd:
    """The end with most bytes sent.  ``chosen``: --flow was given.  Raises ConfluoError for several connections."""
    flows = {frozenset(((end.flow.src, end.flow.src_port), (end.flow.dst, end.flow.dst_port))) for end in ends}
    if len(flows) > 1:
        raise ConfluoError(f"the recording has {len(flows)} connections", hint="choose one: --flow SRC:PORT-DST:PORT")
    if len(ends) > 2 or (chosen and len(ends) > 1):
        raise ConfluoError("the recording has several connections with these ports")
    return max(ends, key=lambda end: sum(end.headers_sent["len"]))


def _head(end: ConnectionEnd, feed: Feed) -> Iterator[str]:
    version = end.flow.version
    yield f"// {end.flow}, seen from its {'client' if end.client else 'server'}"
    for name, text in (("kernel", "Linux {}"), ("tick", "a tick of {} ns"), ("route", "the route {}")):
        if name in end.settings:
            yield f"// recorded with {text.format(end.settings[name])}"
    yield f"--ip_version=ipv{version}"
    yield f"--mtu={(number(end, 'mss') or 1460) + HEADERS[version]}"
    yield f"--tolerance_usecs={TOLERANCE}"
    if feed.options.timestamps:
        yield "--tcp_ts_tick_usecs=1000"
    commands = [
        f'sysctl -q net.ipv4.{name}="{end.settings[name]}"' for name in sorted(end.settings) if name.startswith(SYSCTL)
    ]
    if commands:
        yield "`" + "\n".join(commands) + "`"
    yield ""
    segments = end_settings(end).gso_max_segs
    yield (
        f"0 `ip link set dev tun0 gso_max_segs {segments}`"
        if segments
        else "// the device takes packets of several segments"
    )
    yield f"0 socket(..., SOCK_STREAM, IPPROTO_TCP) = {FIRST}"
    for option in end_settings(end).options:
        yield f"+0 {_option_call(FIRST, OptionValue(*option), '0')}"
    if CHOSEN in end.settings:
        yield f"+0 {_congestion_call(FIRST, str(end.settings[CHOSEN]), '0')}"
    if not end.client:
        yield f"+0 setsockopt({FIRST}, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0"
        yield f"+0 bind({FIRST}, ..., ...) = 0"
        yield f"+0 listen({FIRST}, 1) = 0"
    else:
        yield f"+0 fcntl({FIRST}, F_SETFL, O_RDWR|O_NONBLOCK) = 0"


def _lines(end: ConnectionEnd, feed: Feed) -> Iterator[Line]:
    """Packets and calls, each packet sent after what came before it."""
    sent, sent_feed = recorded_packets(end), _own_options(end)
    emitted, calls = 0, _Calls(end.client)
    for step in fed_steps(end, feed, end.began):
        while emitted < min(step.sent if step.sent != inputs.ANY_COUNT else 0, len(sent)):
            packet = _with_header(sent[emitted], end, emitted)
            yield Line((packet.at - end.began) // 1000, f"> {_packet(packet, sent_feed)}")
            emitted += 1
        if step.kind == inputs.PACKET:
            for part in _segments(feed.packets[step.packet], feed.mss):
                yield Line(step.at // 1000, f"< {_packet(part, feed.options)}")
        elif step.kind != inputs.GATE:
            yield from calls.lines(step)


def _with_header(p: SentPacket, end: ConnectionEnd, place: int) -> SentPacket:
    ecn, tsval, tsecr = (end.headers_sent[name][place] for name in ("ecn", "tsval", "tsecr"))
    return p._replace(ecn=ecn, tsval=tsval, tsecr=tsecr)


def _own_options(end: ConnectionEnd) -> SynOptions:
    scale, sack, stamps = (end.setting(name, -1) for name in ("wscale", "sack", "timestamps"))
    return SynOptions(number(end, "mss"), scale, sack > 0, stamps > 0)


def _segments(p: SentPacket, size: int) -> Iterator[SentPacket]:
    """The packets on the wire: a device may have merged them before TCP got them."""
    for first in range(0, max(p.len, 1), max(size, 1)):
        part = min(size, p.len - first)
        last = first + part >= p.len
        yield p._replace(seq=p.seq + first, len=part, flags=p.flags if last else p.flags & ~9)


def _packet(p: SentPacket, options: SynOptions) -> str:
    flags = "".join(letter for bit, letter in _FLAGS if p.flags & bit) + ("." if p.flags & ACK else "")
    text = f"{_ECN.get(p.ecn, '')}{flags or '-'} {p.seq}:{p.seq + p.len}({p.len})"
    if p.flags & ACK:
        text += f" ack {p.ack}"
    text += f" win {p.window}"
    listed = _syn_options(p, options) if p.flags & SYN else _options(p)
    return f"{text} <{','.join(listed)}>" if listed else text


def _syn_options(p: SentPacket, options: SynOptions) -> list[str]:
    """In the order of Linux."""
    out = [f"mss {options.mss}"]
    if options.timestamps:
        out += ["sackOK" if options.sack else "nop,nop", f"TS val {p.tsval} ecr {p.tsecr}"]
    elif options.sack:
        out += ["nop", "nop", "sackOK"]
    return out + (["nop", f"wscale {options.scale}"] if options.scale >= 0 else [])


def _options(p: SentPacket) -> list[str]:
    out = ["nop", "nop", f"TS val {p.tsval} ecr {p.tsecr}"] if p.tsval else []
    if p.sack:
        blocks = (f"{p.sack[n]}:{p.sack[n + 1]}" for n in range(0, len(p.sack) - 1, 2))
        out += ["nop", "nop", f"sack {' '.join(blocks)}"]
    return out


class _Calls:
    """The lines of the calls of one end.  Its socket does not block, as in a replay."""

    def __init__(self, client: bool) -> None:
        self._fd = FIRST if client else 0  # 0: not accepted yet

    def lines(self, step: inputs.Step) -> Iterator[Line]:
        at = step.at // 1000
        if step.kind == inputs.POLL:
            yield Line(at, f"a poll: {step.result}", comment=True)
            return
        if not self._fd:
            self._fd = FIRST + 1
            yield Line(at, f"accept({FIRST}, ..., ...) = {self._fd}")
            yield Line(at, f"fcntl({self._fd}, F_SETFL, O_RDWR|O_NONBLOCK) = 0")
        text = self._call(step)
        if text:
            yield Line(at, text)

    def _call(self, step: inputs.Step) -> str:
        fd, result = self._fd, _result(step.result)
        if step.kind == inputs.CONNECT:
            return f"connect({fd}, ..., ...) = {_result(-errno.EINPROGRESS)}"
        if step.kind in (inputs.SEND, inputs.RECV):
            name = "send" if step.kind == inputs.SEND else "recv"
            return f"{name}({fd}, ..., {step.size}, {_messages(step.flags)}) = {result}"
        if step.kind == inputs.OPTION:
            return _option_call(fd, OptionValue(step.flags >> 16, step.flags & 0xFFFF, step.size), result)
        if step.kind == inputs.SHUTDOWN:
            return f"shutdown({fd}, {_HOW[step.flags] if step.flags < len(_HOW) else step.flags}) = {result}"
        return f"close({fd}) = {result}" if step.kind == inputs.CLOSE else ""


def _option_call(fd: int, option: OptionValue, result: str) -> str:
    value = option.value
    if option.name == "TCP_CONGESTION":
        return _congestion_call(fd, congestion_name(value), result)
    named = (option.level, option.option) in NAMES and not (option.level == IPPROTO_TCP and option.option >= _NEW)
    words = f"{_LEVELS.get(option.level, option.level)}, {option.name if named else option.option}"
    if option.name == "SO_LINGER":
        return f"setsockopt({fd}, {words}, {{onoff={value & 0xFFFFFFFF}, linger={value >> 32}}}, 8) = {result}"
    return f"setsockopt({fd}, {words}, [{value}], 4) = {result}"


def _congestion_call(fd: int, name: str, result: str) -> str:
    return f'setsockopt({fd}, SOL_TCP, TCP_CONGESTION, "{name}", {len(name)}) = {result}'


def _result(value: int) -> str:
    if value >= 0:
        return str(value)
    return f"-1 {errno.errorcode.get(-value, str(-value))} ({os.strerror(-value)})"


def _messages(flags: int) -> str:
    """Flags of a send or recv call by name; as a number if one has no name."""
    names = [name for bit, name in _MESSAGES.items() if flags & bit]
    return "|".join(names) if names and not flags & ~sum(_MESSAGES) else str(flags)
