"""What sla and verdict share: groups of probes by name, and rules as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools import cli
from confluo_tools.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from confluo_tools.algo.fleet import Fleet
    from confluo_tools.algo.sla import Rule
    from confluo_tools.remote.wish import Wish
    from confluo_tools.schema import Schema
    from confluo_tools.store.mesh import Key, Mesh

PLACES = ("server", "pod", "podset", "dc")
RULES = ("drop > 1e-3", "p99 > 5ms")  # the paper's
_RULE = re.compile(r"\s*([a-z0-9]+)\s*>\s*(\S+?)\s*(?:\s+clear\s+(\S+)\s*)?\Z")


class Scope:
    """``by``: fields of the records to group by; ``names``: what the answer calls them; ``service``: they are joined.

    Raises UsageError for what is no scope.
    """

    def __init__(self, text: str, side: str, schema: Schema) -> None:
        if side not in ("source", "target"):
            raise UsageError(f"not '{side}'", where="--as", hint="source or target")
        end = "src" if side == "source" else "dst"
        self.text, self.service, self.wan = text, text == "service", False
        head, _, pair = text.partition("_")
        if text == "all":
            self.by, self.names = [], []
        elif text == "service":
            self.by, self.names = [end, f"{end}_ip"], ["service"]
        elif text in PLACES:
            self.by, self.names = [_field(end, text)], [text]
        elif pair == "pair" and head in PLACES:
            self.by = [_field("src", head), _field("dst", head)]
            self.names, self.wan = list(self.by), head == "dc"
        else:
            self.by = [name.strip() for name in text.split(",")]
            for name in self.by:
                if name not in schema:
                    hint = "all, server, pod, podset, dc, service, X_pair, or fields of the records"
                    raise UsageError(f"no scope '{name[:60]}'", where="--by", hint=hint)
            if len(set(self.by)) < len(self.by):
                raise UsageError("names a field twice", where="--by")
            if "ts" in self.by:
                raise UsageError("is the time", where="--by ts", hint="--window TIME groups by it")
            self.names = self.by
            self.wan = bool({"level", "src_dc", "dst_dc"} & set(self.by))

    def where(self, text: str) -> str:
        """The expression with what the scope adds: probes between data centres have other round-trip times."""
        return text if self.wan else f"({text}) and not level == wan" if text.strip() else "not level == wan"

    def unions(self, mesh: Mesh, window: int, of: dict[str, tuple[str, ...]]) -> list[tuple[Key, list[int]]] | None:
        """Groups of a window that are joined: those of the servers of each service.  None: none are."""
        if not self.service:
            return None
        found: dict[str, list[int]] = {}
        for number, (name, address) in enumerate(mesh.keys(window)):
            for service in of.get(name) or of.get(address, ()):
                found.setdefault(service, []).append(number)
        return [((service,), numbers) for service, numbers in found.items()]


def _field(end: str, place: str) -> str:
    return end if place == "server" else f"{end}_{place}"


def services(fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """{name or address of a server: its services}."""
    of = fleet.services_of()
    return of | {fleet.server(name).address: its for name, its in of.items()}


def fleet_of(path: str | None, why: str) -> Fleet:
    """The topology that an option needs."""
    from confluo_tools.formats.fleet import read_fleet

    if path is None:
        raise UsageError("needs --topology FILE", where=why, hint="the topology says which servers a service has")
    return read_fleet(path)


def parse_rules(
    texts: Sequence[str], *, background: str | None, false_alarm: str | None, power: str | None
) -> list[tuple[str, Rule]]:
    """``drop > 1e-3``, ``p99 > 5ms clear 4ms`` as (text, rule); limits of times are numbered in their order.

    Raises UsageError.
    """
    from confluo_tools.algo import sla

    found: list[tuple[str, Rule]] = []
    times = 0
    options: dict[str, float] = {}
    for name, text in (("false_alarm", false_alarm), ("power", power)):
        if text is not None:
            options[name] = rate(text, f"--{name.replace('_', '-')}")
    for text in texts:
        if text.strip() == sla.SILENT:
            found.append((sla.SILENT, sla.make_rule(sla.SILENT, 0.0)))
            continue
        match = _RULE.match(text)
        if match is None:
            hint = "write e.g. 'p99 > 5ms clear 4ms', or silent"
            raise UsageError(f"'{text[:60]}' is not a rule", where="--rule", hint=hint)
        metric, limit, ends = match[1], match[2], match[3]
        if metric not in (*sla.RATES, *sla.QUANTILES):
            known = ", ".join((*sla.RATES, *sla.QUANTILES))
            raise UsageError(f"no metric '{metric[:60]}'", where="--rule", hint=f"there are {known}")
        read = rate if metric in sla.RATES else _time
        more: dict[str, Any] = dict(options)
        if metric == "drop" and background is not None:
            more["background"] = rate(background, "--background")
        try:
            rule = sla.make_rule(
                metric, read(limit, "--rule"), clear=None if ends is None else read(ends, "--rule"), limit=times, **more
            )
        except ValueError as e:
            raise UsageError(str(e), where=f"--rule '{text[:60]}'") from None
        times += metric in sla.QUANTILES
        found.append((" ".join(text.split()), rule))
    if times > 4:
        raise UsageError("at most four rules about times", where="--rule")
    return found


def limits_of(rules: Sequence[tuple[str, Rule]]) -> list[int]:
    """Round-trip times above which the rules have samples counted."""
    return [round(rule.threshold) for _, rule in rules if rule.limit >= 0 and rule.metric.startswith("p")]


def rate(text: str, where: str) -> float:
    """``0.001``, ``1e-3`` or ``0.1%``, above 0 and below 1."""
    return cli.fraction(where, text, "a rate", inside=True)


def _time(text: str, where: str) -> float:
    from confluo_tools import units

    value = units.try_duration(text)
    if value is None or value <= 0:
        raise UsageError(f"'{text[:60]}' is not a time", where=where, hint="write e.g. 5ms")
    return float(value)


def wish(where: str, since: int | None, until: int | None) -> Wish:
    """What logs on other hosts are asked for: probes, and what hosts told."""
    from confluo_tools.remote.wish import Wish

    return Wish(f"({where}) or kind == host" if where.strip() else "", since, until)


def check_kind(schema: Schema, name: str) -> None:
    if schema.kind != "probe":
        what = f"holds records of kind '{schema.kind}', not probes"
        raise SchemaError(what, where=name, hint="confluo-pingmesh probe, agent and simulate make probes")
