"""What recordings add to `TwinExplainer`: labels from calls and timers."""

from __future__ import annotations

from confluo_tools.replay.explain.evidence import CALL, HELD_FULL, HELD_MORE, LOSS_PROBE, PACE, PACKET, REORDERING, RTO
from twin_explain_state import MASK, Packet, Side, before

INITIAL_WINDOW = 10


def ack_trigger(p: Packet) -> str:
    """What made TCP send an acknowledgement; '': not known."""
    return {0: "", PACKET: "packet", CALL: "application"}.get(p.sent_by, "timer")


def timer_known(p: Packet) -> bool:
    return p.sent_by in (RTO, LOSS_PROBE, REORDERING)


def full_size(me: Side, you: Side) -> int:
    """A segment of this size or more is full."""
    return you.offered - 60 if you.offered > me.mss + 60 else me.mss


def held_by(p: Packet, me: Side, you: Side, flight: int, gap: int) -> tuple[str, str]:
    """(label, certainty) of a gap when the calls of the application are known."""
    acked = p.sent_by == PACKET
    size = min(p.size, me.mss)
    out = me.before_flight if acked else flight
    window, edge = (me.before_window, me.before_edge) if acked else (me.window, me.edge)
    full = p.cwnd > 0 and out - min(me.sacked, out) + size > p.cwnd * me.mss
    if p.queued < gap - p.queued:
        return ("sndbuf_limited" if p.held & HELD_FULL else "app_limited"), "known"
    if window >= 0 and before(edge, (me.nxt + size) & MASK):
        return ("zero_window" if window < me.mss else "rwnd_limited"), "known"
    if not out and not p.unsent and not p.held & HELD_MORE and p.sent_by != PACE:
        return "app_limited", "known"
    if not full and p.unsent < full_size(me, you) and p.sent_by != PACE:
        if p.held & HELD_MORE:
            return "cork", "known"
        if me.smalls and before((me.nxt - out) & MASK, me.small):
            return "nagle_wait", "known" if acked else "likely"
        if not acked:
            return "cork", "likely"
    certainty = "known" if full else "possible" if p.cwnd else "known" if acked and flight else "likely"
    restarts = me.idle and me.before_flight <= INITIAL_WINDOW * me.mss
    return ("idle_restart" if restarts else "cwnd_limited"), certainty
