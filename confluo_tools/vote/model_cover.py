"""Greedy maximum coverage (007, Algorithm 2): as few components as possible explain all flows with loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.vote.model import Judgement, Model

if TYPE_CHECKING:
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.network.ecmp import Routes


class CoverModel(Model):
    """No options."""

    name = "cover"

    def judge(self, out: Judgement, tally: FlowTally, routes: Routes | None) -> None:
        out.blamed = out.localiser.cover()
