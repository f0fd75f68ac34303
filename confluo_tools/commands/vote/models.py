"""From a tally to a judgement, by any of the models."""

from __future__ import annotations

from math import isfinite, log
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.algo import voting
from confluo_tools.algo.topology import TOR
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.algo.routes import Routes
    from confluo_tools.algo.topology import Topology
    from confluo_tools.core.blame import Judge
    from confluo_tools.core.votes import Tally

MODELS = ("vote", "mle", "cover", "milp-binary", "milp-integer")
ADJUST = ("flows", "ecmp", "none")
HEALTHY = ("none", "path", "ecmp")  # in the order of the core's numbers
KNOWN = 10  # flows without loss for each with, before their paths say how traffic is spread
BLIND = (0.007, 0.0003, -35.0)  # p_b, p_g, prior when it is not known where flows without loss went


class Settings(NamedTuple):
    """How to judge; the defaults of the options."""

    adjust: str = "flows"
    running: bool = True
    threshold: float = voting.THRESHOLD
    floor: float = voting.FLOOR
    noise: float = -1.0  # votes; below 0: those of the flow itself
    literal: bool = False  # a flow blames the link with most votes, whatever is blamed
    p_bad: float | None = None
    p_good: float | None = None
    prior: float | None = None
    ratio: float = 2.0
    seconds: float = 60.0


class Judgement:
    """``blamed``: (component, score) in the order they were found; ``left``: scores of all, after the last of them.

    ``p_bad``, ``p_good``: drop rates that mle used, nan for other models.
    """

    def __init__(self, model: str, settings: Settings, judge: Judge) -> None:
        self.model, self.settings, self.judge = model, settings, judge
        self.blamed: list[tuple[int, float]] = []
        self.left: list[float] = []
        self.p_bad = self.p_good = float("nan")
        self.blind = False
        self.rate: dict[int, float] = {}
        self.peers = False  # switches were held against each other: what is left says nothing of one of them

    def finish(self) -> None:
        if not self.left:
            self.left = self.judge.left()
        for number, _ in self.blamed:
            self.rate[number] = self._rate(number)

    def _rate(self, number: int) -> float:
        # Losses that it explains, of all that crossed it; nan when nothing is known of flows without loss.
        _, lost, sent = self.judge.explained(number)
        healthy = self.judge.crossing(number)[3]
        return lost / (sent + healthy) if lost and healthy > 0 else float("nan")

    def confidence(self, number: int, score: float) -> float:
        """Of a component that is blamed, between 0 and 1."""
        if self.model == "mle":
            from math import exp

            return 1 / (1 + exp(-score)) if score < 700 else 1.0
        explained = self.judge.explained(number)[0]
        return voting.confidence(explained, self._strongest, max(self.judge.tally.records, 1))

    @property
    def _strongest(self) -> int:
        # Flows with loss of the strongest that is not blamed, as far as nothing else explains them.
        taken = {number for number, _ in self.blamed}
        best = max((n for n in range(len(self.left)) if n not in taken), key=lambda n: self.left[n], default=-1)
        return self.judge.waiting(best)[0] if best >= 0 else 0

    def verdict(self, number: int) -> tuple[int, float]:
        """(component, confidence) to which a flow with loss is put down; -1 is noise, -2 not known (no path)."""
        judge, settings = self.judge, self.settings
        parts, _, _, hops, _, _ = judge.tally.flow(number)
        if not parts:
            return -2, 0.0
        if self.model == "mle":
            best = judge.by_blame(number)
            rates = [r for r in (self.rate.get(p, 0.0) for p in parts) if isfinite(r)]
            mine = self.rate.get(best, 0.0)
            all_of = sum(rates) + self.p_good
            return best, mine / all_of if best >= 0 and isfinite(mine) and all_of > 0 else 0.0
        if settings.literal:
            best, _ = judge.by_votes(number, settings.noise)
        else:
            best = judge.by_blame(number)
            if best < 0 and self.model == "vote" and not self.peers:  # who else complains, of what nothing explains?
                likely = max(parts, key=lambda p: (self.left[p], -p))
                lone = 1 / hops if settings.noise < 0 else settings.noise
                best = likely if self.left[likely] > lone + 1e-9 else -1
        if best < 0:
            return -1, 0.0
        votes = [judge.votes_of(p) for p in parts]
        return best, judge.votes_of(best) / sum(votes)


def judge(tally: Tally, model: str, settings: Settings, routes: Routes | None) -> Judgement:
    """Judge the flows of an epoch.  ``routes``: of the topology, where there is one."""
    from confluo_tools.core.blame import Judge

    known = tally.tor_pairs() if routes is not None and tally.healthy else set()
    at = Judge(tally, routes.pairs(known) if routes is not None and known else None)
    out = Judgement(model, settings, at)
    if model == "vote" and settings.adjust == "ecmp":
        assert routes is not None
        _by_shares(out, tally, routes)
    elif model == "vote" and tally.switches and settings.adjust == "flows":
        _among_peers(out, tally, routes.topology if routes is not None else None)
    elif model == "vote":
        out.blamed = at.vote(
            settings.threshold, settings.floor, remove=settings.adjust == "flows", running=settings.running
        )
    elif model == "cover":
        out.blamed = at.cover()
    elif model == "mle":
        _likely(out, tally)
    else:
        _program(out, tally)
    out.finish()
    return out


def _among_peers(out: Judgement, tally: Tally, topology: Topology | None) -> None:
    s, at = out.settings, out.judge
    switches = range(tally.components)
    tier = {n: tally.tier(n) for n in switches}
    located = tally.healthy_flows - tally.placeless - at.unrouted if tally.healthy else 0
    told = located >= KNOWN * tally.flows and located * 2 > tally.healthy_flows
    weight = {n: sum(at.crossing(n)[2:]) if told else 1.0 for n in switches}
    if topology is not None:  # it knows better, and also switches that no flow was seen to cross, numbered below 0
        for i, node in enumerate(topology.switches):
            number = tally.find(node, node)
            if number >= 0 or not told:
                tier[number if number >= 0 else -1 - i] = topology.level[node] - TOR
                weight.setdefault(-1 - i, 1.0)
        weight = {n: weight[n] for n in tier}
    names: list[int] = []

    def explain(number: int) -> None:
        names.append(number)
        at.explain(names)

    out.blamed = voting.vote_among_peers(
        tier, weight, lambda n: at.waiting(n) if n >= 0 else (0, 0.0), explain,
        threshold=s.threshold, floor=s.floor, running=s.running, order=tally.key,
    )  # fmt: skip
    out.peers = True
    out.left = [0.0 if n in names else at.waiting(n)[1] for n in switches]


def _likely(out: Judgement, tally: Tally) -> None:
    s, at = out.settings, out.judge
    if s.p_bad is not None and s.p_good is not None:
        p_bad, p_good, prior = s.p_bad, s.p_good, -15.0 if s.prior is None else s.prior
    elif tally.healthy == 0 or 2 * (tally.healthy_flows - tally.placeless - at.unrouted) <= tally.healthy_flows:
        p_bad, p_good, prior = BLIND[0], BLIND[1], BLIND[2] if s.prior is None else s.prior
        out.blind = True
    else:
        prior = log(voting.CHANCE / max(tally.components, 1)) if s.prior is None else s.prior
        out.blamed = at.fit(prior, s.ratio)
        out.p_bad, out.p_good = 0.0, at.p_g
        return
    out.blamed = at.mle(p_bad, p_good, prior)
    out.p_bad, out.p_good = p_bad, p_good


def _by_shares(out: Judgement, tally: Tally, routes: Routes) -> None:
    s = out.settings
    keys = {tally.key(n): n for n in range(tally.components)}
    votes = {key: out.judge.votes_of(n) for key, n in keys.items()}
    hosts = [k for k in votes if k[0] in routes.topology.tor_of or k[1] in routes.topology.tor_of]
    blamed, left = voting.vote_by_shares(
        {k: v for k, v in votes.items() if v}, lambda k: routes.given(k, hosts),
        threshold=s.threshold, floor=s.floor, running=s.running, order=lambda k: k,
    )  # fmt: skip
    out.blamed = [(keys[k], v) for k, v in blamed]
    out.judge.explain([n for n, _ in out.blamed])
    out.left = [left.get(tally.key(n), 0.0) for n in range(tally.components)]


def _program(out: Judgement, tally: Tally) -> None:
    from confluo_tools.algo import programs

    flows = [tally.flow(n) for n in range(tally.flows)]
    paths = [f[0] for f in flows]
    try:
        if out.model == "milp-binary":
            found = dict.fromkeys(programs.binary(paths, out.settings.seconds), 0)
        else:
            found = programs.integer(paths, [f[1] for f in flows], out.settings.seconds)
    except ImportError:
        hint = "pip install 'confluo-tools[milp]'"
        raise ConfluoError("needs scipy, which is not installed", where=f"--model {out.model}", hint=hint) from None
    except RuntimeError as e:
        hint = "--time-limit gives it more time"
        raise ConfluoError(f"no solution: {e}", where=f"--model {out.model}", hint=hint) from None
    order = sorted(found, key=lambda n: (-found[n], -out.judge.crossing(n)[0], tally.key(n)))
    out.judge.explain(order)
    out.blamed = [(n, float(found[n] or out.judge.explained(n)[0])) for n in order]
    out.left = [0.0] * tally.components
