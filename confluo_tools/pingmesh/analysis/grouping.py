"""Groups of probes by name, and rules as text: shared by sla and verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools import cli
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.network.fleet import Fleet
    from confluo_tools.pingmesh.analysis.probe_tally import Key, WindowTally
    from confluo_tools.pingmesh.analysis.sla import Rule
    from confluo_tools.remote.request import QueryRequest
    from confluo_tools.schema import Schema

PLACES = ("server", "pod", "podset", "dc")
RULES = ("drop > 1e-3", "p99 > 5ms")  # the paper's
_RULE = re.compile(r"\s*([a-z0-9]+)\s*>\s*(\S+?)\s*(?:\s+clear\s+(\S+)\s*)?\Z")


class Scope:
    """Grouping of probes.  ``by``: fields of the records; ``names``: of the output columns.

    ``service``: groups are joined by service.  ``wan``: probes between data centres are included.  Raises UsageError
    for an unknown scope.
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
                    raise UsageError(f"unknown scope '{name[:60]}'", where="--by", hint=hint)
            if len(set(self.by)) < len(self.by):
                raise UsageError("names a field twice", where="--by")
            if "ts" in self.by:
                raise UsageError("is the time", where="--by ts", hint="--window TIME groups by it")
            self.names = self.by
            self.wan = bool({"level", "src_dc", "dst_dc"} & set(self.by))

    def where(self, text: str) -> str:
        """The expression, without probes between data centres unless the scope is about them: their times differ."""
        return text if self.wan else f"({text}) and not level == wan" if text.strip() else "not level == wan"

    def unions(
        self, tally: WindowTally, window: int, services: dict[str, tuple[str, ...]]
    ) -> list[tuple[Key, list[int]]] | None:
        """[(key, numbers of the groups to join)] of a window: the servers of each service.  None: no groups to join."""
        if not self.service:
            return None
        found: dict[str, list[int]] = {}
        for number, (name, address) in enumerate(tally.keys(window)):
            for service in services.get(name) or services.get(address, ()):
                found.setdefault(service, []).append(number)
        return [((service,), numbers) for service, numbers in found.items()]


def _field(end: str, place: str) -> str:
    return end if place == "server" else f"{end}_{place}"


def services(fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """{name or address of a server: its services}."""
    by_name = fleet.services_of()
    return by_name | {fleet.server(name).address: names for name, names in by_name.items()}


def fleet_of(path: str | None, why: str) -> Fleet:
    """The topology that an option needs.  Raises UsageError without one."""
    from confluo_tools.network.topology_file import read_fleet

    if path is None:
        raise UsageError("needs --topology FILE", where=why, hint="the topology lists the servers of a service")
    return read_fleet(path)


def parse_rules(
    texts: Sequence[str], *, background: str | None, false_alarm: str | None, power: str | None
) -> list[tuple[str, Rule]]:
    """``drop > 1e-3``, ``p99 > 5ms clear 4ms`` as (text, rule); rules about times number their limits from 0.

    Raises UsageError.
    """
    from confluo_tools.pingmesh.analysis import sla

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
            raise UsageError(f"invalid rule '{text[:60]}'", where="--rule", hint=hint)
        metric, limit, ends = match[1], match[2], match[3]
        if metric not in (*sla.RATES, *sla.QUANTILES):
            known = ", ".join((*sla.RATES, *sla.QUANTILES))
            raise UsageError(f"unknown metric '{metric[:60]}'", where="--rule", hint=f"metrics are {known}")
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
        raise UsageError("more than four rules about times", where="--rule", hint="leave some out")
    return found


def limits_of(rules: Sequence[tuple[str, Rule]]) -> list[int]:
    """Round-trip times (ns) above which samples are counted for the rules."""
    return [round(rule.threshold) for _, rule in rules if rule.limit >= 0 and rule.metric.startswith("p")]


def rate(text: str, where: str) -> float:
    """``0.001``, ``1e-3`` or ``0.1%``, above 0 and below 1."""
    return cli.fraction(where, text, "a rate", inside=True)


def _time(text: str, where: str) -> float:
    from confluo_tools import units

    value = units.try_duration(text)
    if value is None or value <= 0:
        raise UsageError(f"invalid time '{text[:60]}'", where=where, hint="write e.g. 5ms")
    return float(value)


def query_request(where: str, since: int | None, until: int | None) -> QueryRequest:
    """The request to logs on other hosts: probes, and records of kind `host`."""
    from confluo_tools.remote.request import QueryRequest

    return QueryRequest(f"({where}) or kind == host" if where.strip() else "", since, until)
