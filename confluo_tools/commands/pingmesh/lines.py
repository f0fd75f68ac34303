"""What `confluo-pingmesh probe` tells people: a line for each probe, and what they come to."""

from __future__ import annotations

import os
import random
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.sources.pinging import Plan
    from confluo_tools.sources.targets import Wanted

SAMPLES = 100_000  # round trips that are remembered of a target; more are a random choice among all
OK = 1
OUTCOMES = {1: "ok", 2: "timeout", 3: "refused", 4: "unreachable", 5: "reset", 6: "local", 7: "garbled"}
KINDS = {1: "tcp", 2: "echo", 3: "http", 4: "https", 5: "udp", 6: "icmp"}
LOCAL, OVERFLOW = 6, 4
FIELDS = ("ts", "kind", "outcome", "notes", "ip_version", "dst_ip", "dst_ip6", "dst_port", "src_port", "seq", "payload",
          "retries", "hint", "rtt", "elapsed", "echo", "dns", "tls", "first_byte", "remote", "status", "errno",
          "dst", "detail")  # fmt: skip


class Told(NamedTuple):
    """A probe, as it is needed here."""

    label: str
    row: dict[str, Any]


class Group:
    """Sums of one target and kind."""

    def __init__(self) -> None:
        self.probes = self.ok = self.dropped = self.overflow = 0
        self.outcomes: dict[str, int] = {}
        self.times = {"rtt": Times(), "program": Times(), "payload": Times(), "first byte": Times()}

    def add(self, row: dict[str, Any]) -> None:
        self.probes += 1
        outcome = row["outcome"]
        if outcome != OK:
            name = OUTCOMES.get(outcome, str(outcome))
            self.outcomes[name] = self.outcomes.get(name, 0) + 1
            return
        self.ok += 1
        if row["retries"]:
            self.dropped += 1
            self.overflow += bool(row["notes"] & OVERFLOW)
            return
        for name, field in (("rtt", "rtt"), ("program", "elapsed"), ("payload", "echo"), ("first byte", "first_byte")):
            if row[field]:
                self.times[name].add(row[field])


class Times:
    """Quantiles of up to `SAMPLES` times, exact below that number; least and most are of all."""

    def __init__(self) -> None:
        self.n = self.least = self.most = 0
        self._kept = array("q")
        self._random = random.Random(1)

    def add(self, ns: int) -> None:
        self.least = min(self.least, ns) if self.n else ns
        self.most = max(self.most, ns)
        self.n += 1
        if len(self._kept) < SAMPLES:
            self._kept.append(ns)
        elif (at := self._random.randrange(self.n)) < SAMPLES:
            self._kept[at] = ns

    def quantile(self, q: float) -> int:
        """The smallest value that a share q of them does not exceed."""
        ordered = sorted(self._kept)
        return ordered[max(0, -int(-q * len(ordered) // 1) - 1)] if ordered else 0


class Sums:
    """All targets."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        from confluo_tools.schema import builtin

        self.groups = {label(w): Group() for w in wanted}
        index = builtin("probe").layout.index
        self._at = [(name, index(name)) for name in FIELDS]
        self._labels = {(_cut(w.host), w.kind, w.port): w.text for w in wanted}

    @property
    def ok(self) -> int:
        return sum(g.ok for g in self.groups.values())

    def take(self, block: Block, urls: Mapping[tuple[int, int], str] | None = None) -> Iterator[Told]:
        """``urls``: of records of web probes, by when they were begun and from which port."""
        for i in range(block.rows):
            row = {name: block.get(at, i) for name, at in self._at}
            url = urls.get((row["ts"], row["src_port"])) if urls else None
            told = Told(url or self._label(row), row)
            self.groups.setdefault(told.label, Group()).add(row)
            yield told

    def _label(self, row: dict[str, Any]) -> str:
        from confluo_tools.units import format_ip

        kind = KINDS.get(row["kind"], "?")
        host = row["dst"].rstrip(b"\0").decode("utf-8", "replace")
        host = host or format_ip(row["dst_ip"], row["dst_ip6"], row["ip_version"])
        text = self._labels.get((host, kind, row["dst_port"]))
        if text is None:
            text = f"[{host}]:{row['dst_port']}" if ":" in host else f"{host}:{row['dst_port']}"
        return f"{text} {kind}" if "://" not in text else text

    def line(self, under_way: int = 0) -> str:
        """What happened so far, on one line."""
        groups = self.groups.values()
        parts = [f"{sum(g.probes for g in groups)} probes", f"{self.ok} ok",
                 f"{sum(g.dropped for g in groups)} sent again"]  # fmt: skip
        for name in OUTCOMES.values():
            n = sum(g.outcomes.get(name, 0) for g in groups)
            parts += [f"{n} {name}"] if n else []
        return ", ".join([*parts, *([f"{under_way} not ended"] if under_way else [])])


class Lines:
    """Lines on stdout."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._width = max(len(label(w)) for w in wanted)

    def say(self, line: str) -> None:
        from confluo_tools.cli import printable

        sys.stdout.write(printable(line) + "\n")
        sys.stdout.flush()

    def head(self, plan: Plan) -> None:
        from confluo_tools.units import format_duration

        times = f"{plan.times} times, " if plan.times > 1 else "once, " if plan.times else ""
        lab = ", without limits" if plan.lifted else ""
        self.say(f"{len(plan.wanted)} target{'s' * (len(plan.wanted) > 1)}, {times}"
                 f"every {format_duration(plan.every)}{lab}")  # fmt: skip

    def tell(self, told: Told) -> None:
        self.say(f"{told.label:<{self._width}}  {describe(told.row)}")

    def summary(self, sums: Sums, under_way: int = 0) -> None:
        for label, group in sums.groups.items():
            if not group.probes:
                continue
            self.say("")
            self.say(f"{label}: {totals(group)}")
            for line in findings(group):
                self.say(f"  {line}")
            for name, times in group.times.items():
                if times.n:
                    ends = [times.least, times.quantile(0.5), times.quantile(0.99), times.most]
                    words = "  ".join(f"{what} {ms(ns)}" for what, ns in zip(("min", "p50", "p99", "max"), ends,
                                                                            strict=True))  # fmt: skip
                    self.say(f"  {name:<10} {words} ms")
        if under_way:
            self.say("")
            self.say(f"{under_way} probe{'s' * (under_way > 1)} had neither an answer nor failed when it was over")


def _cut(host: str) -> str:
    """As it stands in a record: 32 bytes, no scope."""
    host = host.partition("%")[0] if ":" in host else host
    return host.encode()[:32].decode("utf-8", "replace")


def label(wanted: Wanted) -> str:
    """What a target is called: as it was written; a URL tells its kind."""
    return wanted.text if "://" in wanted.text else str(wanted)


def ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"


def describe(row: dict[str, Any]) -> str:
    """How a probe went, in words."""
    if row["outcome"] != OK:
        name = OUTCOMES.get(row["outcome"], str(row["outcome"]))
        why = row["detail"].rstrip(b"\0").decode("utf-8", "replace")
        if row["outcome"] == LOCAL:
            return f"not sent: {why or os.strerror(row['errno'])}"
        target = "; target overflow: its host dropped it" if row["notes"] & OVERFLOW else ""
        return f"{name} after {ms(row['elapsed'])} ms{f': {why}' if why else ''}{target}"
    parts = []
    if row["retries"]:
        times = "once" if row["retries"] == 1 else f"{row['retries']} times"
        whose = "target overflow" if row["notes"] & OVERFLOW else "dropped"
        way = "" if row["notes"] & OVERFLOW else {1: ", on the way there", 2: ", on the way back"}.get(row["hint"], "")
        parts.append(f"{whose}{way}; sent again {times}, {ms(row['elapsed'])} ms")
    else:
        parts.append(f"{ms(row['rtt'])} ms")
        if row["elapsed"] and row["kind"] in (1, 2):
            parts.append(f"program {ms(row['elapsed'])}")
    for field, what in (("echo", "payload"), ("dns", "name"), ("tls", "TLS"), ("first_byte", "first byte"),
                        ("remote", "in the target")):  # fmt: skip
        if row[field]:
            parts.append(f"{what} {ms(row[field])}")
    if row["status"]:
        parts.append(f"status {row['status']}")
    if row["src_port"]:
        parts.append(f"from port {row['src_port']}")
    return ", ".join(parts)


def totals(group: Group) -> str:
    parts = [f"{group.probes} probe{'s' * (group.probes != 1)}", f"{group.ok} ok"]
    parts += [f"{n} {name if name != 'local' else 'not sent'}" for name, n in sorted(group.outcomes.items())]
    return ", ".join(parts)


def findings(group: Group) -> Iterator[str]:
    """Drops, and whose they are."""
    from confluo_tools.algo.sla import wilson

    if not group.dropped:
        return
    if group.overflow:
        yield f"target overflow: {group.overflow} of {group.dropped} were dropped by the target's host, not the network"
    net = group.dropped - group.overflow
    if net:
        low, high = wilson(net, group.ok)
        yield f"drop rate {net / group.ok:.2%} ({low:.2%} to {high:.2%}): {net} of {group.ok} sent again"
