"""Judge the flows of an epoch by any of the models of `confluo_tools.vote.registry`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.vote.model import ADJUST, HEALTHY, FlowVerdict, Judgement, ModelSettings
from confluo_tools.vote.registry import NAMES, model_of

if TYPE_CHECKING:
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.network.ecmp import Routes

__all__ = ["ADJUST", "HEALTHY", "NAMES", "FlowVerdict", "Judgement", "ModelSettings", "judge"]


def judge(tally: FlowTally, model: str, settings: ModelSettings, routes: Routes | None) -> Judgement:
    """Judge the flows of an epoch.  ``routes``: those of the topology, if there is one."""
    from confluo_tools.core.vote.fault_localiser import FaultLocaliser

    pairs = tally.tor_pairs() if routes is not None and tally.healthy else set()
    localiser = FaultLocaliser(tally, routes.pairs(pairs) if routes is not None and pairs else None)
    chosen = model_of(model)
    out = Judgement(chosen, settings, localiser)
    chosen.judge(out, tally, routes)
    out.finish()
    return out
