"""The integer programs of 007, section 5.3, as models; `integer_programs` solves them with scipy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools import hidden_numpy
from confluo_tools.errors import ConfluoError
from confluo_tools.vote.model import Judgement, Model

if TYPE_CHECKING:
    from confluo_tools.core.vote.flow_tally import FlowTally, TalliedFlow
    from confluo_tools.network.ecmp import Routes


class BinaryProgram(Model):
    """Program (3): the fewest components that explain all flows with loss.  Option: ``--time-limit``."""

    name = "milp-binary"

    def solve(self, flows: list[TalliedFlow], seconds: float) -> dict[int, int]:
        """{component: packets it dropped, 0 when the program does not say}."""
        from confluo_tools.vote import integer_programs

        return dict.fromkeys(integer_programs.binary([f.parts for f in flows], seconds), 0)

    def judge(self, out: Judgement, tally: FlowTally, routes: Routes | None) -> None:
        hidden_numpy.show()  # scipy needs it
        try:
            found = self.solve([tally.flow(n) for n in range(tally.flows)], out.settings.seconds)
        except ImportError:
            hint = "pip install 'confluo-tools[milp]'"
            raise ConfluoError("needs scipy, which is not installed", where=f"--model {self.name}", hint=hint) from None
        except RuntimeError as e:
            hint = "--time-limit gives it more time"
            raise ConfluoError(f"no solution: {e}", where=f"--model {self.name}", hint=hint) from None
        at = out.localiser
        order = sorted(found, key=lambda n: (-found[n], -at.crossing(n).flows, tally.key(n)))
        at.explain(order)
        out.blamed = [(n, float(found[n] or at.explained(n).flows)) for n in order]
        out.left = [0.0] * tally.components


class IntegerProgram(BinaryProgram):
    """Program (4): packets lost by component, of as few components as possible.  Option: ``--time-limit``."""

    name = "milp-integer"

    def solve(self, flows: list[TalliedFlow], seconds: float) -> dict[int, int]:
        from confluo_tools.vote import integer_programs

        return integer_programs.integer([f.parts for f in flows], [f.lost for f in flows], seconds)
