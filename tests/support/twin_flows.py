"""A plain twin of the flow table: the rules of confluo-flows(1), and the states and letters of Zeek's conn.log.

Zeek: https://docs.zeek.org/en/current/scripts/base/protocols/conn/main.zeek.html (conn_state, history) and the states
of its TCP endpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

FIN, SYN, RST, ACK = 1, 2, 4, 16
JUMP = 10**10
LINGER = 5 * 10**9
PAIRS = {1: {(8, 0), (10, 9), (13, 14), (15, 16), (17, 18)}}
PAIRS[58] = {(128, 129), (133, 134), (135, 136), (130, 131), (139, 140), (144, 145)}


class Packet(NamedTuple):
    ts: int
    src: str
    dst: str
    sport: int = 1000
    dport: int = 80
    proto: int = 6
    flags: int = ACK
    seq: int = 0
    ack: int = 0
    size: int = 0
    window: int = 100
    bytes: int = 40


def answer(proto: int, kind: int) -> int | None:
    for a, b in PAIRS[proto]:
        if kind in (a, b):
            return b if kind == a else a
    return None


class End:
    """One end of a flow."""

    def __init__(self) -> None:
        self.state, self.before = "inactive", "inactive"
        self.base = self.next = self.next_us = self.ack = self.window = self.duplicates = 0
        self.restart()

    def restart(self) -> None:
        self.packets = self.bytes = self.payload = self.flags = self.zero = self.resets = self.again = self.late = 0

    def go(self, state: str) -> None:
        self.before, self.state = self.state, state


def less(a: int, b: int) -> bool:
    return (a - b) % 2**32 >= 2**31


class Flow:
    """One record in the making."""

    def __init__(self, p: Packet, sport: int, dport: int) -> None:
        self.proto, self.first, self.last = p.proto, p.ts, p.ts
        self.ends = {"o": End(), "r": End()}
        self.history = ""
        self.syn: int | None = None
        self.synack: int | None = None
        self.syn_rtt: int | None = None
        self.ack_rtt: int | None = None
        self.src, self.sport, self.dst, self.dport = p.src, sport, p.dst, dport
        if p.proto == 6 and p.flags & SYN and p.flags & ACK:
            self.src, self.sport, self.dst, self.dport = p.dst, dport, p.src, sport
            self.history = "^"

    def who(self, p: Packet, sport: int, dport: int) -> str:
        return "o" if (p.src, sport) == (self.src, self.sport) and (p.dst, dport) == (self.dst, self.dport) else "r"

    def letter(self, who: str, letter: str, *, again: bool = False) -> None:
        text = letter.upper() if who == "o" else letter
        if len(self.history) < 14 and (again or text not in self.history):
            self.history += text

    @property
    def over(self) -> str:
        states = [e.state for e in self.ends.values()]
        return "rst" if "reset" in states else "fin" if states == ["closed", "closed"] else ""

    def add(self, who: str, p: Packet) -> None:
        me = self.ends[who]
        me.packets, me.bytes, me.payload = me.packets + 1, me.bytes + p.bytes, me.payload + p.size
        if p.proto == 6 and p.flags:
            self.segment(who, p)
        elif p.proto == 17:
            self.letter(who, "d")
        self.first, self.last = min(self.first, p.ts), max(self.last, p.ts)

    def segment(self, who: str, p: Packet) -> None:
        me, you = self.ends[who], self.ends["r" if who == "o" else "o"]
        control = p.flags & (SYN | FIN | RST)
        end = (p.seq + p.size + bool(p.flags & (SYN | FIN))) % 2**32
        probe = p.size == 1 and me.next and p.seq == me.next and you.next and you.window == 0
        if not me.base or (p.flags & SYN and p.flags & ACK):
            me.base = p.seq if p.flags & SYN else (p.seq - 1) % 2**32
        if p.flags & ACK and not you.base:
            you.base = (p.ack - 1) % 2**32
        self.flags_letters(who, p)
        if p.window == 0 and not control:
            me.zero += 1
            if me.zero in (1, 10, 100) and you.state != "closed" and me.state != "reset":
                self.letter(who, "w", again=True)
        if p.ack != me.ack:
            me.duplicates = 0
        elif not p.size and me.next and p.seq == me.next and p.window and p.window == me.window and not control:
            me.duplicates = min(me.duplicates + 1, 3)
        keep_alive = p.size <= 1 and p.seq == (me.next - 1) % 2**32 and not control
        passed = (p.size or p.flags & (SYN | FIN)) and not keep_alive and self.passed(me, you, p, end)
        if passed and p.size and me.again + me.late in (1, 10, 100):
            self.letter(who, "t", again=True)
        if not probe and (not me.next or less(me.next, end)):
            me.next, me.next_us = end, p.ts // 1000
        me.window, me.ack, me.flags = p.window, p.ack, me.flags | p.flags
        me.resets += bool(p.flags & RST)
        self.handshake(who, p)
        self.states(who, me, you, p)

    def passed(self, me: End, you: End, p: Packet, end: int) -> bool:
        if p.size and you.ack and not less(you.ack, (p.seq + p.size) % 2**32):
            me.again += 1
            return True
        if not me.next or not less(p.seq, me.next) or (p.size > 1 and (me.next - 1) % 2**32 == p.seq):
            return False
        rtt = (self.syn_rtt or 0) + self.ack_rtt if self.ack_rtt is not None else 0
        if you.duplicates >= 2 and you.ack == p.seq and 0 <= p.ts - self.last < 20_000_000:
            me.again += 1
        elif (p.ts // 1000 - me.next_us) % 2**32 < (rtt // 1000 if rtt > 0 else 3000) and me.next != end:
            me.late += 1
        else:
            me.again += 1
        return True

    def flags_letters(self, who: str, p: Packet) -> None:
        control = p.flags & (SYN | FIN | RST)
        if not control:
            if p.size:
                self.letter(who, "d")
            elif p.flags & ACK:
                self.letter(who, "a")
        elif control == SYN:
            self.letter(who, "h" if p.flags & ACK else "s")
        elif control in (FIN, RST):
            self.letter(who, "f" if control == FIN else "r")
        else:
            self.letter(who, "i" if control & FIN and control & RST else "q")

    def handshake(self, who: str, p: Packet) -> None:
        if p.flags & SYN and not p.flags & ACK:
            if who == "o" and self.syn_rtt is None:
                self.syn = p.ts
        elif p.flags & SYN:
            if who == "r" and self.syn is not None and self.ack_rtt is None:
                if self.syn_rtt is None:
                    self.syn_rtt = p.ts - self.syn
                self.synack = p.ts
        elif who == "o" and p.flags & ACK and not p.flags & RST and self.synack is not None and self.ack_rtt is None:
            self.ack_rtt = p.ts - self.synack

    def states(self, who: str, me: End, you: End, p: Packet) -> None:
        fin, syn, rst, ack = (bool(p.flags & bit) for bit in (FIN, SYN, RST, ACK))
        if me.state == "inactive":
            if syn and who == "r":
                if you.state == "syn_sent":
                    you.go("established")
                me.go("established")
            elif syn and ack:
                me.go("syn_ack_sent")
            elif syn:
                me.go("established" if you.state == "established" else "syn_sent")
            if fin:
                me.go("closed")
            if rst:
                me.go("reset")
            if me.state == "inactive" and not (who == "r" and not p.size and you.state == "syn_sent"):
                me.go("established" if ack and you.state == "established" else "partial")
        elif me.state in ("syn_sent", "syn_ack_sent"):
            if fin:
                me.go("closed")
            if rst:
                me.go("reset")
        elif me.state in ("established", "partial"):
            if syn and not ack and me.state == "partial" and you.state == "inactive":
                me.go("syn_sent")
            if fin and not rst:
                me.go("closed")
                if (you.state, you.before) == ("reset", "closed"):
                    you.go("closed")
            if rst:
                me.go("reset")
        elif me.state == "closed" and rst and you.state != "closed":
            me.go("reset")

    def conn_state(self) -> str:
        o, r = self.ends["o"], self.ends["r"]
        quiet = ("inactive", "partial")
        if self.proto == 17:
            return {(1, 1): "SF", (1, 0): "S0", (0, 1): "SHR", (0, 0): "OTH"}[bool(o.packets), bool(r.packets)]
        if self.proto != 6:
            return "OTH"
        if r.state == "reset":
            if o.state in ("syn_sent", "syn_ack_sent") or (o.state == "reset" and not o.payload and not r.payload):
                return "REJ"
            return "RSTRH" if o.state in quiet else "RSTR"
        if o.state == "reset":
            return "RSTOS0" if r.state in quiet else "RSTO"
        if o.state == r.state == "closed":
            return "SF"
        if o.state == "closed":
            return "SH" if r.state in quiet else "S2"
        if r.state == "closed":
            return "SHR" if o.state in quiet else "S3"
        if (o.state, r.state) == ("syn_sent", "inactive"):
            return "S0"
        return "S1" if o.state == r.state == "established" else "OTH"

    def row(self, reason: str) -> dict[str, Any]:
        out: dict[str, Any] = {"ts": self.first, "last_ts": self.last, "duration": self.last - self.first}
        out |= {"proto": self.proto, "src_ip": self.src, "src_port": self.sport, "dst_ip": self.dst}
        out |= {"dst_port": self.dport, "conn_state": self.conn_state(), "history": self.history, "reason": reason}
        out |= {"syn_rtt": self.syn_rtt or 0, "ack_rtt": self.ack_rtt or 0}
        for name, e in (("src", self.ends["o"]), ("dst", self.ends["r"])):
            values = {"packets": e.packets, "bytes": e.bytes, "payload": e.payload, "flags": e.flags}
            values |= {"retx": e.again, "ooo": e.late, "zero_windows": e.zero, "resets": e.resets}
            out |= {f"{name}_{field}": value for field, value in values.items()}
        return out


class FlowTwin:
    """The table: ``rows`` are the records so far, in their order."""

    def __init__(self, most: int, idle: int, active: int) -> None:
        self.most, self.idle, self.active = most, idle, active
        self.open: OrderedDict[Any, Flow] = OrderedDict()
        self.ended: OrderedDict[Any, Flow] = OrderedDict()
        self.rows: list[dict[str, Any]] = []
        self.now: int | None = None
        self.other: int | None = None
        self.evicted = 0

    def see(self, ts: int) -> None:
        if self.now is None:
            self.now = ts
        elif abs(ts - self.now) > JUMP:
            if self.other is not None and abs(ts - self.other) <= JUMP:
                self.now, self.other = ts, None
            else:
                self.other = ts
        else:
            self.other, self.now = None, max(self.now, ts)

    def patience(self, flow: Flow) -> int:
        return min(self.idle, LINGER) if flow.over else self.idle

    def end(self, where: OrderedDict[Any, Flow], key: Any, reason: str) -> None:
        flow = where.pop(key)
        self.rows.append(flow.row(reason if reason == "evicted" else flow.over or reason))

    def expire(self) -> None:
        assert self.now is not None
        for where in (self.open, self.ended):
            while self.idle and where:
                key, flow = next(iter(where.items()))
                if abs(flow.last - self.now) <= self.patience(flow):
                    break
                self.end(where, key, "idle")

    def put(self, p: Packet) -> None:
        self.see(p.ts)
        self.expire()
        sport, dport, way = p.sport, p.dport, ""
        if p.proto in PAIRS:
            other = answer(p.proto, p.sport)
            sport, dport = p.sport, p.dport if other is None else other
            way = p.src if other is None else ""
        key = frozenset([(p.src, sport), (p.dst, dport)]), p.proto, way
        flow = self.open.get(key) or self.ended.get(key)
        where = self.open if key in self.open else self.ended
        if flow is not None:
            me = flow.ends[flow.who(p, sport, dport)]
            if self.idle and abs(p.ts - flow.last) > self.patience(flow):
                self.end(where, key, "idle")
                flow = None
            elif p.proto == 6 and p.flags & SYN and not p.flags & ACK and me.base and p.seq != me.base:
                self.end(where, key, "syn")
                flow = None
            elif self.active and p.ts - flow.first >= self.active:
                self.rows.append(flow.row("active"))
                flow.first = flow.last = p.ts
                for e in flow.ends.values():
                    e.restart()
        if flow is None:
            if len(self.open) + len(self.ended) == self.most:
                oldest = self.ended or self.open
                self.end(oldest, next(iter(oldest)), "evicted")
                self.evicted += 1
            flow = Flow(p, sport, dport)
        self.open.pop(key, None)
        self.ended.pop(key, None)
        flow.add(flow.who(p, sport, dport), p)
        (self.ended if p.proto == 6 and flow.over else self.open)[key] = flow

    def finish(self) -> list[dict[str, Any]]:
        left = sorted([*self.open.values(), *self.ended.values()], key=lambda flow: flow.first)
        self.rows += [flow.row(flow.over or "end") for flow in left]
        return self.rows


def run(packets: list[Packet], most: int = 1 << 20, idle: int = 0, active: int = 0) -> Iterator[dict[str, Any]]:
    twin = FlowTwin(most, idle, active)
    for p in packets:
        twin.put(p)
    yield from twin.finish()
