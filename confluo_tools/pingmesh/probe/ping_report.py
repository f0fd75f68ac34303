"""Text output of confluo-pingmesh probe: a line per probe, and a summary."""

from __future__ import annotations

import os
import random
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.probe.runner import ProbeOptions
    from confluo_tools.pingmesh.probe.targets import ProbeTarget

SAMPLES = 100_000  # times kept per target; beyond, a random sample
OK = 1
OUTCOMES = {1: "ok", 2: "timeout", 3: "refused", 4: "unreachable", 5: "reset", 6: "local", 7: "garbled"}
KINDS = {1: "tcp", 2: "echo", 3: "http", 4: "https", 5: "udp", 6: "icmp"}
LOCAL, OVERFLOW = 6, 4
FIELDS = (
    "ts",
    "kind",
    "outcome",
    "notes",
    "ip_version",
    "dst_ip",
    "dst_ip6",
    "dst_port",
    "src_port",
    "seq",
    "payload",
    "retries",
    "hint",
    "rtt",
    "elapsed",
    "echo",
    "dns",
    "tls",
    "first_byte",
    "remote",
    "status",
    "errno",
    "dst",
    "detail",
)


class ReportedProbe(NamedTuple):
    """A probe: the label of its target, and its fields."""

    label: str
    row: dict[str, Any]


class TargetSummary:
    """Counts and times of one target and kind."""

    def __init__(self) -> None:
        self.probes = self.ok = self.dropped = self.overflow = 0
        self.outcomes: dict[str, int] = {}
        self.times = {"rtt": TimeSample(), "program": TimeSample(), "payload": TimeSample(), "first byte": TimeSample()}

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


class TimeSample:
    """Quantiles of times, exact up to `SAMPLES` of them; minimum and maximum are of all."""

    def __init__(self) -> None:
        self.n = self.min = self.max = 0
        self._kept = array("q")
        self._random = random.Random(1)

    def add(self, ns: int) -> None:
        self.min = min(self.min, ns) if self.n else ns
        self.max = max(self.max, ns)
        self.n += 1
        if len(self._kept) < SAMPLES:
            self._kept.append(ns)
        elif (at := self._random.randrange(self.n)) < SAMPLES:
            self._kept[at] = ns

    def quantile(self, q: float) -> int:
        """The smallest value that a share ``q`` of the times does not exceed."""
        ordered = sorted(self._kept)
        return ordered[max(0, -int(-q * len(ordered) // 1) - 1)] if ordered else 0


class ProbeSummary:
    """Summary over all targets."""

    def __init__(self, wanted: Sequence[ProbeTarget]) -> None:
        from confluo_tools.schema import builtin

        self.groups = {label(w): TargetSummary() for w in wanted}
        index = builtin("probe").layout.index
        self._at = [(name, index(name)) for name in FIELDS]
        self._labels = {(_cut(w.host), w.kind, w.port): w.text for w in wanted}

    @property
    def ok(self) -> int:
        return sum(g.ok for g in self.groups.values())

    def take(self, block: Block, urls: Mapping[tuple[int, int], str] | None = None) -> Iterator[ReportedProbe]:
        """Add the records of a block.  ``urls``: URL of an HTTP probe by (time, source port)."""
        for i in range(block.rows):
            row = {name: block.get(at, i) for name, at in self._at}
            url = urls.get((row["ts"], row["src_port"])) if urls else None
            probe = ReportedProbe(url or self._label(row), row)
            self.groups.setdefault(probe.label, TargetSummary()).add(row)
            yield probe

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
        """Counts so far, on one line."""
        groups = self.groups.values()
        parts = [
            f"{sum(g.probes for g in groups)} probes",
            f"{self.ok} ok",
            f"{sum(g.dropped for g in groups)} sent again",
        ]
        for name in OUTCOMES.values():
            n = sum(g.outcomes.get(name, 0) for g in groups)
            parts += [f"{n} {name}"] if n else []
        return ", ".join([*parts, *([f"{under_way} in flight"] if under_way else [])])


class ProbePrinter:
    """Prints probes and the summary to stdout."""

    def __init__(self, wanted: Sequence[ProbeTarget]) -> None:
        self._width = max(len(label(w)) for w in wanted)

    def write(self, line: str) -> None:
        from confluo_tools.cli import printable

        sys.stdout.write(printable(line) + "\n")
        sys.stdout.flush()

    def head(self, plan: ProbeOptions) -> None:
        from confluo_tools.units import format_duration

        times = f"{plan.times} times, " if plan.times > 1 else "once, " if plan.times else ""
        lab = ", without limits" if plan.lifted else ""
        self.write(
            f"{len(plan.wanted)} target{'s' * (len(plan.wanted) > 1)}, {times}every {format_duration(plan.every)}{lab}"
        )

    def probe(self, probe: ReportedProbe) -> None:
        self.write(f"{probe.label:<{self._width}}  {describe(probe.row)}")

    def summary(self, sums: ProbeSummary, under_way: int = 0) -> None:
        for label, group in sums.groups.items():
            if not group.probes:
                continue
            self.write("")
            self.write(f"{label}: {totals(group)}")
            for line in findings(group):
                self.write(f"  {line}")
            for name, times in group.times.items():
                if times.n:
                    ends = [times.min, times.quantile(0.5), times.quantile(0.99), times.max]
                    words = "  ".join(
                        f"{what} {ms(ns)}" for what, ns in zip(("min", "p50", "p99", "max"), ends, strict=True)
                    )
                    self.write(f"  {name:<10} {words} ms")
        if under_way:
            self.write("")
            self.write(f"{under_way} probe{'s' * (under_way > 1)} without a result at the end")


def _cut(host: str) -> str:
    """A host as in a record: 32 bytes, no scope."""
    host = host.partition("%")[0] if ":" in host else host
    return host.encode()[:32].decode("utf-8", "replace")


def label(wanted: ProbeTarget) -> str:
    """The label of a target: as given, with its kind unless it is a URL."""
    return wanted.text if "://" in wanted.text else str(wanted)


def ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"


def describe(row: dict[str, Any]) -> str:
    """The result of a probe as text."""
    if row["outcome"] != OK:
        name = OUTCOMES.get(row["outcome"], str(row["outcome"]))
        why = row["detail"].rstrip(b"\0").decode("utf-8", "replace")
        if row["outcome"] == LOCAL:
            return f"not sent: {why or os.strerror(row['errno'])}"
        target = "; target overflow: dropped by its host" if row["notes"] & OVERFLOW else ""
        return f"{name} after {ms(row['elapsed'])} ms{f': {why}' if why else ''}{target}"
    parts = []
    if row["retries"]:
        times = "once" if row["retries"] == 1 else f"{row['retries']} times"
        cause = "target overflow" if row["notes"] & OVERFLOW else "dropped"
        way = (
            ""
            if row["notes"] & OVERFLOW
            else {1: " on the forward path", 2: " on the return path"}.get(row["hint"], "")
        )
        parts.append(f"{cause}{way}; sent again {times}, {ms(row['elapsed'])} ms")
    else:
        parts.append(f"{ms(row['rtt'])} ms")
        if row["elapsed"] and row["kind"] in (1, 2):
            parts.append(f"program {ms(row['elapsed'])}")
    for field, what in (
        ("echo", "payload"),
        ("dns", "name"),
        ("tls", "TLS"),
        ("first_byte", "first byte"),
        ("remote", "in the target"),
    ):
        if row[field]:
            parts.append(f"{what} {ms(row[field])}")
    if row["status"]:
        parts.append(f"status {row['status']}")
    if row["src_port"]:
        parts.append(f"from port {row['src_port']}")
    return ", ".join(parts)


def totals(group: TargetSummary) -> str:
    parts = [f"{group.probes} probe{'s' * (group.probes != 1)}", f"{group.ok} ok"]
    parts += [f"{n} {name if name != 'local' else 'not sent'}" for name, n in sorted(group.outcomes.items())]
    return ", ".join(parts)


def findings(group: TargetSummary) -> Iterator[str]:
    """Lines on drops and their causes."""
    from confluo_tools.pingmesh.analysis.sla import wilson

    if not group.dropped:
        return
    if group.overflow:
        yield f"target overflow: {group.overflow} of {group.dropped} dropped by the target's host, not the network"
    net = group.dropped - group.overflow
    if net:
        low, high = wilson(net, group.ok)
        yield f"drop rate {net / group.ok:.2%} ({low:.2%} to {high:.2%}): {net} of {group.ok} sent again"
