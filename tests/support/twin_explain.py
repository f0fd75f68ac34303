"""The rules of `confluo_tools.core.replay.explainer`, once more in plain Python, a packet at a time.

Read this to understand the compiled one; `tests/replay/test_explain_twin.py` compares them row by row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from confluo_tools.replay.explain.evidence import CALLS, LOSS_PROBE, PACKET, REORDERING, RTO
from confluo_tools.replay.explain.labels import CERTAINTY, EVENTS, EVIDENCE, LABELS, TRIGGERS
from twin_explain_evidence import ack_trigger, full_size, held_by, timer_known
from twin_explain_state import (
    LOSS,
    MASK,
    NEVER,
    OPEN,
    RECOVERY,
    SENDING,
    Again,
    Flow,
    Message,
    Packet,
    Segment,
    Side,
    before,
    judge,
    quotient,
    sent_after,
)

MS = 1_000_000
SLACK = 2 * MS  # a packet that follows an input within this was caused by it
DELACK = 30 * MS  # an acknowledgement later than this was sent by the timer (40 ms, less a tick of 10 ms)
DELACK_TIME = 40 * MS
RTO_MIN = 200 * MS
WATCH = 1000 * MS  # a report of a duplicate may come for this long
DUP_THRESHOLD = 3
SAYS_MORE = {"spurious", "delayed_ack", "delack_window_shrink", "ack_loss", "tail_loss", "few_dupacks"}
SAYS_MORE |= {"lost_retransmission"}
INITIAL_WINDOW = 10
FIN, SYN, RST, ACK = 1, 2, 4, 16


class TwinExplainer:
    """Feed packets in order of time; read ``rows`` and ``messages`` after `finish`."""

    def __init__(self, gap: int = MS) -> None:
        self.gap = gap
        self.missing = sum(1 << EVIDENCE.index(name) for name in ("timers", "calls", "probes"))
        self.rows: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.flows: dict[Any, Flow] = {}
        self.count = 0

    def packet(self, key: Any, p: Packet, *, sent: bool = True, received: bool = True) -> None:
        """A packet of the connection ``key`` as its sender sent it, as its receiver received it, or both in one tap."""
        f = self.flows.get(key)
        if f is None:
            f = self.flows[key] = Flow((Side(), Side()), self.count)
            self.count += 1
        if not (sent and received):
            f.both = True
            f.side[p.side if sent else 1 - p.side].here = True
        me, you = f.side[p.side], f.side[1 - p.side]
        if p.flags & SYN and not p.flags & ACK and me.known and p.seq != me.base:  # the ports are used again
            self._end(f)
            f = self.flows[key] = Flow((Side(), Side()), self.count, both=f.both)
            self.count += 1
            f.side[0].here = f.side[1].here = f.both
            me, you = f.side[p.side], f.side[1 - p.side]
        if sent:
            self._options(f, p, me)
        if p.flags & RST:
            return
        if p.flags & ACK:
            if sent:
                self._acknowledges(f, p, me, you)
            if received:
                self._acknowledged(f, p, you, me)
        if sent:
            self._sends(f, p, me, you)
        if received:
            self._receives(f, p, you, me)

    def finish(self) -> None:
        for f in self.flows.values():
            self._end(f)
        messages = {(m["flow"], m["number"]): m for m in self.messages}
        for row in self.rows:
            row["cause"] = row["why"] if LABELS[row["why"]] in SAYS_MORE else row["label"]
            counted = row.pop("counted")
            if row["message"]:
                messages[row["flow"], row["message"]]["times"][row["cause"]] += counted
        for message in self.messages:
            judge(message, message.pop("sender"))

    def _end(self, f: Flow) -> None:
        for s, side in enumerate(f.side):
            self._finish_message(f, s, side)

    # ---- handshake

    def _options(self, f: Flow, p: Packet, me: Side) -> None:
        if not p.flags & SYN:
            if f.syn_ack > NEVER and p.flags & ACK and not f.both and f.syn > NEVER:
                # the tap is where the round trip is short
                near, far = p.ts - f.syn_ack, f.syn_ack - f.syn
                if near >= 0 and far >= 0:
                    me.distance, f.side[1 - p.side].distance = near, far
                    me.here, f.side[1 - p.side].here = near < far // 4, far < near // 4
                f.syn = NEVER
            return
        f.handshake |= 1 << p.side
        me.scale, me.sack_ok, me.offered = p.scale, p.sack_ok, p.mss
        if p.flags & ACK:
            f.syn_ack = p.ts if f.syn_ack == NEVER and f.syn > NEVER else f.syn_ack
        elif f.syn == NEVER and f.syn_ack == NEVER:
            f.syn = p.ts
        else:
            f.syn_ack = f.syn = NEVER  # sent again: its times mean nothing

    def _scale(self, f: Flow, me: Side, p: Packet) -> int:
        you = f.side[1 - f.side.index(me)]
        return 0 if p.flags & SYN or me.scale < 0 or you.scale < 0 else min(me.scale, 14)

    # ---- the end that acknowledges

    def _acknowledges(self, f: Flow, p: Packet, me: Side, you: Side) -> None:
        window = p.window << self._scale(f, me, p)
        if me.expects and me.pending and not me.here and p.ack == me.acked and not p.size:
            me.doubt, me.doubted, me.pending = True, me.expected, 0  # what was sent last is lost behind the tap
        if me.expects and before(me.acked, p.ack):
            oldest = p.ts - me.pending_ts - me.distance if me.pending else 0
            youngest = p.ts - me.data_ts - me.distance if me.pending else 0
            me.late = 0
            if me.doubt:
                me.doubt = before(p.ack, me.doubted)
            elif me.pending and oldest >= self.gap and not (p.sacks and not before(p.ack, p.sacks[0][1])):
                shrinks = me.pending > you.mss > 0 and 0 <= window < me.own_window
                trigger = "reply" if p.size else ack_trigger(p) or ("packet" if youngest < SLACK else "")
                trigger = trigger or ("timer" if youngest >= DELACK else "application")
                label = "delack_window_shrink" if shrinks and trigger != "packet" else "delayed_ack"
                self._row(
                    f, p.side, p, "ack", label,
                    certainty="known" if p.sent_by or (me.here and trigger == "timer") else "likely",
                    duration=oldest, start=p.ts - oldest, trigger=trigger, seq=me.acked - you.base,
                    size=me.pending, previous=me.pending_number, window=window, flight=me.pending,
                )  # fmt: skip
                me.late, me.late_ack, me.late_label = oldest, p.ack, LABELS.index(label)
            if not before(p.ack, me.expected):
                me.expected, me.pending = p.ack, 0
            elif me.pending:
                me.pending, me.pending_ts = (me.expected - p.ack) & MASK, me.data_ts
        if not me.expects or before(me.acked, p.ack):
            me.acked = p.ack
            for segment in you.segments if f.both else ():
                if before(p.ack, segment.end):
                    break
                segment.answered = True
        if not p.flags & SYN:
            me.zero_windows += window == 0 and me.own_window > 0
            me.own_window = window

    def _receives(self, f: Flow, p: Packet, me: Side, you: Side) -> None:
        end = (p.seq + p.size + bool(p.flags & SYN) + bool(p.flags & FIN)) & MASK
        if end == p.seq:
            return
        if p.flags & SYN and not p.flags & ACK and me.known:  # a SYN again: it may be answered again
            me.since += 1
            me.in_ts, me.in_number = p.ts, p.number
        if not me.expects:
            me.expects, me.expected, me.acked = True, end, end if p.flags & SYN else p.seq
            if p.flags & SYN:
                return
            me.pending, me.pending_ts, me.pending_number = p.size, p.ts, p.number
            me.data_ts = p.ts
            return
        if f.both:
            segment = next((s for s in you.segments if not before(p.seq, s.seq) and before(p.seq, s.end)), None)
            first = segment is not None and segment.arrived == NEVER
            if segment is not None and first:
                segment.arrived = p.ts
            if p.size:
                self._arrives(you, p, end, first)
        if p.flags & SYN:
            return
        if not before(me.acked, end):
            return  # a duplicate, acknowledged at once
        if before(me.expected, p.seq):
            return  # out of order, acknowledged at once
        new = before(me.expected, end)
        if not me.pending or (not new and not me.here):
            me.pending_ts, me.pending_number = p.ts, p.number
            me.pending = max(me.pending, p.size, 1)
        elif new:
            me.pending += p.size
        me.data_ts = p.ts
        if new:
            me.expected = end

    # ---- the end that sends

    def _acknowledged(self, f: Flow, p: Packet, me: Side, you: Side) -> None:
        """``me`` receives an acknowledgement."""
        if not me.known:
            me.known, me.base, me.nxt, me.una = True, (p.ack - 1) & MASK, p.ack, p.ack
        window = p.window << self._scale(f, you, p)
        flight = (me.nxt - me.una) & MASK
        me.before_flight, me.before_edge, me.before_window = flight, me.edge, me.window
        late = you.late if you.late and you.late_ack == p.ack else 0
        blocks = list(p.sacks)
        duplicate = None
        if blocks and (
            not before(p.ack, blocks[0][1])
            or (len(blocks) > 1 and not before(blocks[0][0], blocks[1][0]) and not before(blocks[1][1], blocks[0][1]))
        ):
            duplicate = blocks.pop(0)
        if before(me.una, p.ack):
            self._advance(f, p, me, late, you.late_label)
        elif p.ack == me.una and flight and not p.size and window == me.window and not p.flags & (SYN | FIN):
            me.duplicates += 1
            if me.duplicates == DUP_THRESHOLD and me.third_ts == NEVER:
                me.third_ts = p.ts
        for left, right in blocks:
            self._sack(p, me, left, right)
        if duplicate is not None:
            self._duplicate(f, me, *duplicate)
        if not before(p.ack, me.una):
            me.edge, me.window = (p.ack + window) & MASK, window
            if window and before(me.nxt, me.edge):
                me.probes = 0
        me.acks += 1
        me.since += 1
        me.in_ts, me.in_number, me.in_plain = p.ts, p.number, not p.size
        me.in_late, me.in_label = late, you.late_label

    def _triggered(self, p: Packet, me: Side, gap: int) -> bool:
        """Whether an acknowledgement made the sender send, also as a later packet of the same burst."""
        if p.sent_by:
            me.burst = p.sent_by == PACKET
        elif me.since:
            me.burst = p.ts - me.in_ts <= SLACK + me.distance
        elif gap > SLACK:
            me.burst = False
        return me.burst

    def _advance(self, f: Flow, p: Packet, me: Side, late: int, label: int) -> None:
        m = me.message
        if m is not None and before(me.una, m.edge) and not before(p.ack, m.edge):
            m.end, m.late, m.late_label = p.ts, late, label
        sample = 0
        newest: Segment | None = None
        if before(me.nxt, p.ack):
            me.nxt = p.ack  # the capture lacks packets
            me.segments.clear()
            me.sacked = 0
        kept = 0
        for segment in me.segments:
            if not before(segment.seq, p.ack):
                break
            if before(p.ack, segment.end):
                if segment.sacked:
                    me.sacked -= (p.ack - segment.seq) & MASK
                segment.seq = p.ack
                break
            kept += 1
            if segment.sacked:
                me.sacked -= (segment.end - segment.seq) & MASK
            elif segment.sent == 1:
                sample, newest = p.ts - segment.last, segment
                if me.sacked and before(segment.end, p.ack):
                    me.reordering = True
        del me.segments[:kept]
        me.delivered += (p.ack - me.una) & MASK
        if newest is not None and sample >= 0:
            if not me.srtt:
                me.srtt, me.rttvar = sample, sample // 2
            else:
                me.rttvar += quotient(abs(me.srtt - sample) - me.rttvar, 4)
                me.srtt += quotient(sample - me.srtt, 8)
            me.min_rtt = sample if not me.min_rtt else min(me.min_rtt, sample)
            if sample:
                me.rate = max(me.rate, (me.delivered - newest.delivered) * 1_000_000_000 // sample)
        me.una = p.ack
        me.duplicates, me.backoff, me.third_ts = 0, 0, NEVER
        if me.probed and not before(p.ack, me.probe_end):
            me.probed = False
        if me.state != OPEN and not before(p.ack, me.recover):
            me.state = OPEN
        for again in [a for a in me.again if not before(p.ack, a.end)]:
            row = self.rows[again.row]
            soon = p.ts - again.ts
            if not row["missing"] & 1:
                continue  # what arrived is known
            if p.tsecr and again.tsval:
                if before(p.tsecr, again.tsval):
                    self._why(row, "spurious", "known")
            elif me.min_rtt and soon < me.min_rtt // 2 and row["label"] != LABELS.index("fast_rtx"):
                self._why(row, "spurious", "likely")
        me.again = [a for a in me.again if before(p.ack, a.end) or p.ts - a.ts < WATCH]

    def _sack(self, p: Packet, me: Side, left: int, right: int) -> None:
        if before(me.nxt, right) or not before(left, right):
            return
        for segment in me.segments:
            if not before(segment.seq, right):
                break
            if before(segment.seq, left) or before(right, segment.end) or segment.sacked:
                continue
            segment.sacked = True
            me.sacked += (segment.end - segment.seq) & MASK
            me.delivered += (segment.end - segment.seq) & MASK
        if me.third_ts == NEVER and me.mss > 1 and me.sacked >= DUP_THRESHOLD * me.mss:
            me.third_ts = p.ts

    def _latest(self, me: Side, left: int, right: int) -> Again | None:
        """The latest retransmission within these sequence numbers."""
        return next((a for a in reversed(me.again) if not before(a.seq, left) and not before(right, a.end)), None)

    def _arrives(self, me: Side, p: Packet, end: int, first: bool) -> None:
        """Data of ``me`` comes to the other end: what was sent again while this copy was on its way was not needed."""
        within = [a for a in me.again if not before(a.seq, p.seq) and not before(end, a.end)]
        order = [(a, sent_after(a, p)) for a in within]
        for again in [a for a, after in order if after]:
            self._not_needed(me, again)
        if not first and within and all(after is None for _, after in order):
            self._not_needed(me, within[-1])

    def _not_needed(self, me: Side, again: Again) -> None:
        row = self.rows[again.row]
        if LABELS[row["why"]] not in ("ack_loss", "delayed_ack"):
            self._why(row, "spurious", "known")
        me.again.remove(again)

    def _duplicate(self, f: Flow, me: Side, left: int, right: int) -> None:
        """The other end reports data that came twice (DSACK)."""
        me.dsacks += 1
        again = self._latest(me, left, right) if not f.both else None
        if again is None:
            return
        row = self.rows[again.row]
        if LABELS[row["label"]] not in ("rto", "tlp") or again.acks != me.acks:
            self._why(row, "spurious", "known")
        elif row["age"] < DELACK_TIME + 2 * me.srtt:
            self._why(row, "delayed_ack", "possible")
        else:
            self._why(row, "ack_loss", "likely")
        me.again.remove(again)

    def _sends(self, f: Flow, p: Packet, me: Side, you: Side) -> None:
        size = p.size + bool(p.flags & SYN) + bool(p.flags & FIN)
        end = (p.seq + size) & MASK
        me.evidence |= p.evidence
        if not me.known:
            me.known, me.base, me.una, me.nxt = True, p.seq, p.seq, p.seq
            if not p.flags & SYN:
                me.base = (p.seq - 1) & MASK
        if size <= 1 and p.seq == (me.una - 1) & MASK and me.una == me.nxt and not p.flags & (SYN | FIN):
            self._probe(f, p, me)
            return
        if not size:
            return
        if p.size > me.mss:
            limit = you.offered or 1460
            me.mss = p.size if p.size < limit else max(limit, me.mss)
        gap = p.ts - me.sent_ts if me.sent_ts > NEVER else 0
        if before(p.seq, me.nxt):
            self._again(f, p, me, you, end, gap)
        else:
            if before(me.nxt, p.seq):  # the capture lacks what is between
                me.segments.append(Segment(me.nxt, p.seq, p.ts, p.ts, 0, 0, me.delivered, 0))
            self._fresh(f, p, me, you, end, gap)
            me.segments.append(Segment(p.seq, end, p.ts, p.ts, p.number, p.number, me.delivered))
            me.last_size, me.highest_id = p.size, p.ip_id
            if p.size and p.size < full_size(me, you):
                me.small, me.smalls = end, True
        if before(me.nxt, end):
            me.nxt = end
        me.most = max(me.most, (me.nxt - me.una) & MASK)
        me.sent_ts, me.sent_number, me.since = p.ts, p.number, 0
        if me.message is not None:
            me.message.last = p.number
            me.message.packets += 1

    def _probe(self, f: Flow, p: Packet, me: Side) -> None:
        """A segment with the sequence number of an old byte: it asks for an acknowledgement."""
        zero = me.window >= 0 and not before(me.nxt, me.edge)
        if zero:
            me.probes += 1
        since = max(me.probe_ts, me.sent_ts)
        self._row(
            f, p.side, p, "probe", "window_probe" if zero else "keep_alive", certainty="known",
            duration=p.ts - since if since > NEVER else 0, start=max(since, 0) or p.ts, trigger="timer",
            n=me.probes if zero else 0,
            seq=p.seq - me.base, previous=me.sent_number, window=me.window, cause=me.in_number,
        )  # fmt: skip
        me.probe_ts = p.ts

    def _fresh(self, f: Flow, p: Packet, me: Side, you: Side, end: int, gap: int) -> None:
        """New data: what did it wait for?"""
        flight = (me.nxt - me.una) & MASK
        if p.flags & SYN:
            return
        if me.message is None:
            if p.size:
                self._start_message(f, p, me)
                self._extend_message(p, me)
            return
        if gap < self.gap and flight:
            self._triggered(p, me, gap)
            self._spent(p, me)
            self._extend_message(p, me)
            return
        triggered = self._triggered(p, me, gap)
        why, certainty, n, trigger = "", "likely", 0, "packet" if triggered else "application"
        probe = not (p.sent_by or triggered) and flight and self._may_be_probe(p, me, gap)
        if (p.sent_by == LOSS_PROBE and flight) or probe:
            label, certainty, trigger, why = "tlp", "known" if p.sent_by else "possible", "timer", "tail_loss"
            me.probed, me.probe_end = True, end
        elif not flight and not triggered and self._fills_window(p, me):
            label, certainty, trigger = "rwnd_limited", "known" if p.sent_by else "likely", "timer"
        elif p.evidence & CALLS:
            label, certainty = held_by(p, me, you, flight, gap)
        elif triggered:
            blocked = me.before_window >= 0 and before(me.before_edge, (me.nxt + min(p.size, me.mss)) & MASK)
            if blocked and me.before_window < me.mss:
                label, certainty = "zero_window", "known"
            elif blocked:
                label, certainty = "rwnd_limited", "known"
            elif not me.before_flight:
                label = "app_limited"
            elif not flight and 0 < p.size < me.mss and me.in_plain and 0 < me.last_size < me.mss:
                label = "nagle_wait"
            elif not flight and (not me.in_plain or p.flags & FIN):
                label = "app_limited"
            elif me.idle and me.before_flight <= INITIAL_WINDOW * me.mss:
                label = "idle_restart"
            else:
                label, certainty = "cwnd_limited", "known" if flight else "likely"
        else:
            label = "app_limited"
        if me.in_late > gap // 2 and label not in ("app_limited", "tlp", "cork"):
            why = LABELS[me.in_label]
        fresh = not flight and label == "app_limited"  # the next message
        if fresh and p.size:
            restarts = gap > max(RTO_MIN, me.srtt + 4 * me.rttvar) and me.most > INITIAL_WINDOW * me.mss
            self._finish_message(f, p.side, me)
            self._start_message(f, p, me)
            if restarts:
                me.idle, me.most = True, 0
        elif label != "idle_restart":
            me.idle = False
        if gap >= self.gap:
            self._row(
                f, p.side, p, "gap", label, why=why, certainty=certainty, duration=gap, start=p.ts - gap, n=n,
                trigger=trigger, seq=p.seq - me.base, size=p.size, previous=me.sent_number,
                cause=me.in_number if triggered else 0, flight=flight, window=me.window, rtt=me.srtt, inside=not fresh,
                counted=0 if fresh else self._count_wait(p, me),
            )  # fmt: skip
        elif not fresh:
            self._spent(p, me)
        self._extend_message(p, me)

    def _fills_window(self, p: Packet, me: Side) -> bool:
        if p.sent_by not in (0, LOSS_PROBE, RTO):
            return False
        return 0 < me.window < me.mss and 0 < p.size < me.mss and (p.seq + p.size) & MASK == me.edge

    def _may_be_probe(self, p: Packet, me: Side, gap: int) -> bool:
        if me.since or me.probed or me.state != OPEN or not me.srtt or p.size < me.mss or me.last_size < me.mss:
            return False
        timeout = self._probe_timeout(me)
        return timeout - 4 * MS <= gap <= timeout + 12 * MS

    def _probe_timeout(self, me: Side) -> int:
        return 2 * me.srtt + (RTO_MIN if len(me.segments) == 1 else 2 * MS)

    def _again(self, f: Flow, p: Packet, me: Side, you: Side, end: int, gap: int) -> None:
        """Data below the highest sent: a retransmission, or a packet that the network put out of order."""
        found = [s for s in me.segments if before(s.seq, end) and before(p.seq, s.end)]
        old = found[0] if found else None
        unseen = old is not None and old.sent == 0
        if unseen and p.ip_id and me.highest_id and ((p.ip_id - me.highest_id) & 0xFFFF) >= 0x8000:
            assert old is not None
            old.sent, old.first, old.last, old.number, old.last_number = 1, p.ts, p.ts, p.number, p.number
            self._row(
                f, p.side, p, "order", "reordering", certainty="known", duration=gap, start=p.ts - gap,
                seq=p.seq - me.base, size=p.size, previous=me.sent_number,
            )  # fmt: skip
            self._spent(p, me)
            return
        times = old.sent if old is not None else 1
        age = p.ts - old.last if old is not None and old.sent else gap
        triggered = self._triggered(p, me, gap)
        mss = max(me.mss, 1)
        count = max(me.duplicates, me.sacked // mss if me.mss > 1 else 0)
        tail = end == me.nxt
        why, certainty, n, trigger = "loss", "likely", 0, "packet" if triggered else "timer"
        flight = (me.nxt - me.una) & MASK
        if p.flags & SYN:
            me.backoff += not triggered
            label, n, certainty = ("after_rto" if triggered else "rto"), me.backoff, "known"
        elif old is None:  # acknowledged before
            label, n, why, certainty = "rto", me.backoff, "spurious", "known"
            if not triggered:
                me.backoff += 1
                n = me.backoff
        elif (triggered or p.sent_by == REORDERING) and me.state == LOSS:
            label, n = "after_rto", me.backoff
        elif triggered or p.sent_by == REORDERING or (
            not timer_known(p) and count
            and me.state != LOSS and p.ts - me.in_ts <= max(me.srtt, me.min_rtt) + 4 * MS
        ):  # fmt: skip
            late = (
                me.state == OPEN and me.third_ts > NEVER and count > DUP_THRESHOLD
                and p.ts - me.third_ts > SLACK + 2 * me.distance
            )  # fmt: skip
            label, n = ("late_fr" if late else "fast_rtx"), count
            if late and me.reordering:
                why = "reordering"
            if me.state == OPEN:
                me.state, me.recover = RECOVERY, me.nxt
            if times > 1:
                why = "lost_retransmission"
        elif p.sent_by == LOSS_PROBE or (
            p.sent_by != RTO and tail and times == 1 and not me.probed and me.state == OPEN and me.sack_ok
            and you.sack_ok
        ):  # fmt: skip
            label, why = "tlp", "tail_loss"
            certainty = "likely" if len(me.segments) == 1 and not timer_known(p) else "known"
            me.probed, me.probe_end = True, end
        else:
            me.backoff += 1
            label, n = "rto", me.backoff
            why = (
                "lost_retransmission" if times > 1 and me.state == RECOVERY and not me.probed
                else "few_dupacks" if count
                else "tail_loss"
            )  # fmt: skip
            certainty = "known" if timer_known(p) or not before(me.una, p.seq) else "likely"
            me.state, me.recover = LOSS, me.nxt
        if old is not None and old.arrived > NEVER:
            why, certainty = ("ack_loss" if old.answered else "delayed_ack"), "known"
        elif f.both and old is not None and why == "loss":
            certainty = "known"
        row = self._row(
            f, p.side, p, "retransmission", label, why=why, certainty=certainty, duration=gap, start=p.ts - gap,
            trigger=trigger, n=n, seq=p.seq - me.base, size=p.size,
            previous=old.last_number if old is not None else me.sent_number,
            cause=me.in_number if trigger == "packet" else 0, flight=flight, window=me.window, rtt=me.srtt, age=age,
            counted=self._count_wait(p, me),
        )  # fmt: skip
        me.again.append(Again(row, p.seq, end, p.ts, p.tsval, p.ip_id, me.acks))
        if len(me.again) > 64:
            del me.again[0]
        if me.message is not None:
            me.message.again += 1
        self._split(me, p, end)

    def _split(self, me: Side, p: Packet, end: int) -> None:
        """Mark [p.seq, end) as sent again; a segment that is only partly in it becomes two or three."""
        out = []
        for s in me.segments:
            if not (before(s.seq, end) and before(p.seq, s.end)):
                out.append(s)
                continue
            low = p.seq if before(s.seq, p.seq) else s.seq
            high = end if before(end, s.end) else s.end
            if low != s.seq:
                out.append(replace(s, end=low))
            out.append(replace(s, seq=low, end=high, last=p.ts, last_number=p.number, sent=s.sent + 1))
            if high != s.end:
                out.append(replace(s, seq=high))
        if before(me.nxt, end):
            out.append(Segment(me.nxt, end, p.ts, p.ts, p.number, p.number, me.delivered))
        me.segments = out

    # ---- results

    def _count_wait(self, p: Packet, me: Side) -> int:
        """The wait of the open message until this packet; 0 after its last acknowledgement."""
        m = me.message
        if m is None or ((not p.size or before(p.seq, me.nxt)) and not before(me.una, m.edge)):
            return 0
        wait, m.counted = p.ts - m.counted, p.ts
        return wait

    def _spent(self, p: Packet, me: Side) -> None:
        wait = self._count_wait(p, me)
        if me.message is not None:
            me.message.times[SENDING] += wait

    def _start_message(self, f: Flow, p: Packet, me: Side) -> None:
        f.messages += 1
        me.message = Message(f.messages, p.ts, p.number, counted=p.ts)

    def _extend_message(self, p: Packet, me: Side) -> None:
        if p.size and me.message is not None:
            me.message.bytes += p.size
            me.message.edge = (p.seq + p.size) & MASK

    def _finish_message(self, f: Flow, s: int, me: Side) -> None:
        m, me.message = me.message, None
        if m is None:
            return
        if before(me.una, m.edge):
            m.end = 0  # not acknowledged
        values = {k: getattr(m, k) for k in m.__slots__}
        self.messages.append({"flow": f.number, "side": s, "sender": me, **values})

    def _why(self, row: dict[str, Any], why: str, certainty: str) -> None:
        row["why"], row["certainty"] = LABELS.index(why), CERTAINTY.index(certainty)

    def _row(self, f: Flow, s: int, p: Packet, event: str, label: str, *, why: str = "", certainty: str = "likely",
             duration: int = 0, start: int | None = None, trigger: str = "", n: int = 0, seq: int = 0, size: int = 0,
             previous: int = 0, cause: int = 0, flight: int = 0, window: int = 0, rtt: int = 0, age: int = 0,
             inside: bool = True, counted: int = 0) -> int:  # fmt: skip
        """Append a row; returns its number."""
        self.rows.append(
            {
                "flow": f.number, "side": s, "ts": p.ts if start is None else start, "event": EVENTS.index(event),
                "label": LABELS.index(label), "why": LABELS.index(why), "certainty": CERTAINTY.index(certainty),
                "missing": (self.missing & ~f.side[s].evidence) | (not f.both) | (f.handshake != 3) << 1,
                "duration": duration,
                "trigger": TRIGGERS.index(trigger), "n": n, "seq": seq & MASK, "len": size, "packet": p.number,
                "previous_packet": previous, "trigger_packet": cause, "flight": flight, "window": max(window, 0),
                "rtt": rtt,
                "age": age, "counted": counted,
                "message": f.side[1 - s if event == "ack" else s].open_message() if inside else 0,
            }
        )  # fmt: skip
        return len(self.rows) - 1
