"""The simulator of probes: who probes whom against the planner, what is lost against what was broken, the same bytes
from the same seed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

from confluo_tools.algo.fleet import Fleet, make_grid
from confluo_tools.algo.pinglists import Plan, Rules
from confluo_tools.errors import UsageError
from confluo_tools.sources.meshsim import CERTAIN, KINDS, SECOND, Fault, Settings, Simulation

DTYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i64": "<i8", "f32": "<f4", "f64": "<f8"}
TCP, HOST, TRUTH = 1, 16, 18
POD, DC, WAN = 1, 2, 3
OK, TIMEOUT = 1, 2
GRID = make_grid(1, 3, 4, 4)
MINUTE = 60 * SECOND

Table = dict[str, Any]


def simulate(fleet: Fleet = GRID, *faults: Fault, **more: Any) -> Simulation:
    return Simulation(fleet, Settings(faults=faults, **more))


def table(sim: Simulation, kind: int = TCP) -> Table:
    """The columns of its records of a kind as numpy arrays."""
    parts: dict[str, list[Any]] = {}
    for block in sim.blocks():
        for i, column in enumerate(sim.schema.columns):
            base = column.field.type.base
            width = block.layout.describe(i)[2]
            dtype = DTYPES[base] if base in DTYPES and width == np.dtype(DTYPES[base]).itemsize else f"S{width}"
            parts.setdefault(column.name, []).append(np.frombuffer(bytes(block.buffer(i)), dtype))
    whole = {name: np.concatenate(values) for name, values in parts.items()}
    kept = whole["kind"] == kind
    return {name: values[kept] for name, values in whole.items()}


def digest(sim: Simulation) -> str:
    h = hashlib.sha256()
    for block in sim.blocks():
        for i, name in enumerate(block.layout.names):
            data = bytes(block.buffer(i))
            if any(data):  # a new field of the schema changes nothing
                h.update(name.encode() + data)
    return h.hexdigest()


def test_each_pair_of_the_plan_is_probed_once_an_interval() -> None:
    fleet = make_grid(2, 2, 3, 4)
    plan = Plan(fleet, Rules())
    wanted = Counter((s.name, p.name, p.level) for s in fleet.servers for p in plan.peers(s))
    assert max(wanted.values()) == 1
    t = table(simulate(fleet, span=30 * SECOND))
    levels = {POD: "pod", DC: "dc", WAN: "wan"}
    got = Counter((a.decode(), b.decode(), levels[c]) for a, b, c in zip(t["src"], t["dst"], t["level"], strict=True))
    assert got == dict.fromkeys(wanted, 3)
    assert (np.diff(t["ts"]) >= 0).all()


def test_the_same_seed_gives_the_same_bytes() -> None:
    faults = (Fault("spine_drops"), Fault("blackhole2", "p003", start=MINUTE, length=2 * MINUTE))
    more: dict[str, Any] = {"span": 5 * MINUTE}
    first = digest(simulate(GRID, *faults, seed=5, **more))
    assert digest(simulate(GRID, *faults, seed=5, **more)) == first
    assert digest(simulate(GRID, *faults, seed=6, **more)) != first
    # of every machine: integers only
    assert first[:16] == "47160d5464655f63"


def test_a_podset_that_is_down_neither_probes_nor_answers() -> None:
    t = table(simulate(GRID, Fault("podset_down", "ps02", start=2 * MINUTE, length=2 * MINUTE), span=6 * MINUTE))
    began = t["ts"] - Settings().start
    down = (began >= 2 * MINUTE) & (began < 4 * MINUTE)
    assert not (down & (t["src_podset"] == b"ps02")).any()
    to = t["dst_podset"] == b"ps02"
    assert (t["outcome"][down & to] == TIMEOUT).all()
    assert (down & to).sum() > 1000
    assert (t["outcome"][~(down & to)] == OK).all()
    assert (t["rtt"][t["outcome"] == TIMEOUT] == 0).all()


def test_a_fault_needs_a_place_that_it_can_befall() -> None:
    for kind, place in (("tor_drops", "ps01"), ("spine_drops", "dc1/9"), ("blackhole1", "p001s01>p001s01"), ("x", "")):
        with pytest.raises(UsageError):
            simulate(GRID, Fault(kind, place))
    assert [simulate(GRID, Fault(kind)).placed[0].detail for kind in KINDS]
    assert simulate(GRID, Fault("spine_drops", "dc1/all", rate=CERTAIN)).placed[0].devices == tuple(range(24, 32))
