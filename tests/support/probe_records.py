"""Probes of a simulated fleet with faults, for tests of what is concluded from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluo_tools.core.block.block import Block
from confluo_tools.formats.reader import Reader
from confluo_tools.network.fleet import make_grid
from confluo_tools.pingmesh.simulate.simulation import CERTAIN, Fault, ProbeSimulation, SimulationSettings

GRID = (1, 4, 4, 8)


class Simulated(Reader):
    """Records of a simulation, as any other input."""

    def __init__(self, *faults: Fault, seed: int = 1, grid: tuple[int, int, int, int] = GRID, **more: Any) -> None:
        super().__init__("simulation")
        self._sim = ProbeSimulation(make_grid(*grid), SimulationSettings(faults=faults, seed=seed, **more))
        self.schema = self._sim.schema

    def blocks(self) -> Iterator[Block]:
        return iter(self._sim.blocks())


def fault(kind: str, place: str = "", rate: float | None = None, **more: int) -> Fault:
    """``rate`` as a share; ``start`` and ``length`` in ns."""
    return Fault(kind, place, None if rate is None else int(rate * CERTAIN), **more)


def stream(path: Path, *faults: Fault, **more: Any) -> Path:
    """The same as a file."""
    from confluo_tools.cli import RecordOutput

    reader = Simulated(*faults, **more)
    with RecordOutput(reader.schema, "stream", path=str(path)) as out:
        for block in reader:
            out.write(block, None)
    return path
