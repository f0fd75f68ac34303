"""The labels of `confluo-replay explain` and the words of its fields.  The numbers are those in records."""

from __future__ import annotations

EVENTS = ("", "gap", "retransmission", "ack", "probe", "order")
LABELS = (
    "",
    "rto",
    "tlp",
    "fast_rtx",
    "late_fr",
    "after_rto",
    "spurious",
    "delayed_ack",
    "delack_window_shrink",
    "zero_window",
    "window_probe",
    "ack_loss",
    "tail_loss",
    "nagle_wait",
    "cork",
    "idle_restart",
    "app_limited",
    "sndbuf_limited",
    "rwnd_limited",
    "cwnd_limited",
    "keep_alive",
    "few_dupacks",
    "lost_retransmission",
    "reordering",
    "loss",
    "sending",
    "round_trip",
)
CERTAINTY = ("", "possible", "likely", "known")
TRIGGERS = ("", "packet", "timer", "application", "reply")
EVIDENCE = ("other_end", "handshake", "sack", "timers", "calls", "probes")  # bits of the field missing

# label -> (how it is written, the name of its number)
SPELLED = {
    "rto": ("rto", "backoff"),
    "tlp": ("tlp", ""),
    "fast_rtx": ("fast-rtx", "dupthresh"),
    "late_fr": ("late-fr", "reordering"),
    "delack_window_shrink": ("delack+window-shrink", ""),
}


def _pattern(label: str) -> str:
    name, number = SPELLED.get(label, (label.replace("_", "-"), ""))
    return f"{name}({number}=%u)" if number else name


PATTERNS = tuple(map(_pattern, LABELS))  # how each label is written, with %u for its number
