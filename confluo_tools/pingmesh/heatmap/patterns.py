"""Patterns of a pods x pods map: the four canonical pictures of Pingmesh (SIGCOMM 2015, section on visualisation).

A map has a colour for each ordered pair of pods: `NONE` (white: no latency was measured), `GREEN`, `YELLOW`, `RED`, or
`ABSENT` where no probes are expected (a pod of one server has no pairs within).  Rows are grouped by podset, so that
each pair of podsets is a block.  A block has the colour of more than half of its cells, or `MIXED` if no colour has a
majority; a few odd cells change nothing.  The pattern follows from the blocks:

- all green: ``normal``;
- a white row and column: ``podset down`` (power failure, or cut off);
- a red row and column: ``podset failure`` (its leaf switches, a broadcast storm within it);
- red except green blocks on the diagonal: ``spine failure``;
- anything else: ``unclassified``; of drops, `drop_patterns` takes a second look, and also finds ``ToR failure``.

The paper has one broken podset; here several are named, as long as one podset is left without fault.  A cross with
another colour on the diagonal (cut off outside, alive inside) also names its podset if there are three podsets or more:
with two it could be another pattern.

Data centres against each other (`classify_dcs`) have other patterns, because links connect them, not layers:
``data centre down``, ``data centre cut off`` (alive inside), ``data centre failure``, ``trouble inside``, ``link down``
and ``link failure`` between two of them, ``wan down`` and ``wan failure`` between all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp

NONE, GREEN, YELLOW, RED, ABSENT = range(5)
LETTERS = "WGYR."  # of the colours; '.': no probes expected in the whole block
MIXED = "?"
NORMAL, DOWN, FAILURE, SPINE, UNCLASSIFIED = (
    "normal",
    "podset down",
    "podset failure",
    "spine failure",
    "unclassified",
)
TOR = "ToR failure"
DC_DOWN, CUT_OFF, DC_FAILURE, DC_INSIDE, LINK_DOWN, LINK_FAILURE, WAN_DOWN, WAN_FAILURE = (
    "data centre down",
    "data centre cut off",
    "data centre failure",
    "trouble inside",
    "link down",
    "link failure",
    "wan down",
    "wan failure",
)
BACKGROUND = 1e-4  # drop rate of a healthy network
CHANCE = 1e-4  # maximum chance that such a network makes a cell red
_CROSS = {"W": DOWN, "R": FAILURE}


@dataclass(frozen=True, slots=True)
class PatternFinding:
    """``name`` of the pattern; ``podset`` (or data centre) with the fault, '' without a single one; ``peer``: the other
    data centre of a fault between two; ``pod``: the pod of a ToR with the fault.
    """

    name: str
    podset: str = ""
    peer: str = ""
    pod: str = ""

    @property
    def place(self) -> str:
        """``ps02``, ``dc1 - dc3``, the pod of a ToR, or ''."""
        if self.pod:
            return self.pod
        return f"{self.podset} - {self.peer}" if self.peer else self.podset


@dataclass(frozen=True, slots=True)
class Pattern:
    """The pattern of a map: one finding, or one per broken podset; ``blocks``: a row of letters per podset."""

    findings: tuple[PatternFinding, ...]
    podsets: tuple[str, ...]
    blocks: tuple[str, ...]

    @property
    def name(self) -> str:
        """The names of the findings: 'podset down', or 'podset down, podset failure'."""
        return ", ".join(dict.fromkeys(finding.name for finding in self.findings))

    @property
    def text(self) -> str:
        """Names and places of the findings: 'podset down: ps02, ps05'."""
        names = dict.fromkeys(finding.name for finding in self.findings)
        parts = []
        for name in names:
            podsets = [f.place for f in self.findings if f.name == name and f.podset]
            parts.append(f"{name}: {', '.join(podsets)}" if podsets else name)
        return "; ".join(parts)


def colours(values: Iterable[int], green: int, red: int) -> bytes:
    """The colour of each value: `NONE` for 0, `GREEN` below ``green``, `RED` above ``red``, else `YELLOW`."""
    limits = [1, max(green, 1), max(red, green) + 1]
    return bytes([bisect_right(limits, value) for value in values])


def drop_colour(ok: int, dropped: int, green: float, red: float) -> int:
    """The colour of ``dropped`` among ``ok`` answered probes: by their rate, but red only beyond chance.

    One drop in 60 probes is a rate of 1.7 %, but not significant: red needs a count that a healthy network (drop rate
    `BACKGROUND`) reaches with a chance below `CHANCE`.
    """
    if not ok:
        return NONE
    rate = dropped / ok
    if rate < green or not dropped:
        return GREEN
    return RED if rate > red and at_least(dropped, ok * BACKGROUND) < CHANCE else YELLOW


def drop_colours(ok: Sequence[int], dropped: Sequence[int], green: float, red: float) -> bytes:
    """`drop_colour` of each cell."""
    found = bytearray([GREEN if n else NONE for n in ok])
    for i, n in enumerate(dropped):
        if n:
            found[i] = drop_colour(ok[i], n, green, red)
    return bytes(found)


def at_least(k: int, mean: float) -> float:
    """Chance of ``k`` or more events where ``mean`` are expected (Poisson)."""
    if k <= 0:
        return 1.0
    if mean > 700:  # exp() would be 0; far beyond the means used here
        return 1.0 if k <= mean else 0.0
    term = total = exp(-mean)
    if k <= mean + 1:
        for i in range(1, k):
            term *= mean / i
            total += term
        return max(0.0, 1.0 - total)
    for i in range(1, k + 1):  # sum the upper tail: 1 - ... would lose all digits
        term *= mean / i
    tail, i = 0.0, k
    while term > tail * 1e-16:
        tail += term
        i += 1
        term *= mean / i
    return min(1.0, tail)


def majority(counts: Sequence[int]) -> str:
    """The letter of the colour of more than half of the cells; ``counts`` by colour, `ABSENT` is ignored."""
    cells = sum(counts[:ABSENT])
    if not cells:
        return LETTERS[ABSENT]
    most = max(range(ABSENT), key=counts.__getitem__)
    return LETTERS[most] if 2 * counts[most] > cells else MIXED


def blocks(rows: Sequence[bytes], groups: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """The colours of the blocks.  ``rows``: a byte per cell; ``groups``: (first row, row after) of each podset.

    Time is linear in the cells, far below a nanosecond each.
    """
    found = []
    for first, after in groups:
        line = ""
        for left, right in groups:
            counts = [0] * (ABSENT + 1)
            for row in rows[first:after]:
                for colour in range(ABSENT + 1):
                    counts[colour] += row.count(colour, left, right)
            line += majority(counts)
        found.append(line)
    return tuple(found)


def drop_blocks(
    rows: Sequence[bytes],
    ok: Sequence[int],
    dropped: Sequence[int],
    groups: Sequence[tuple[int, int]],
    green: float,
    red: float,
) -> tuple[str, ...]:
    """The colours of the blocks of a map of drops, from all probes of a block together; single cells have too few.

    A block is red or yellow if its rate is, beyond chance; red only if most of its rows and of its columns are above
    ``red``: one bad pod colours only a row or a column.  ``rows`` as in `blocks`; ``ok`` and ``dropped`` row by row.
    """
    n = len(rows)
    found = []
    for line, (first, after) in zip(blocks(rows, groups), groups, strict=True):
        new = ""
        for letter, (left, right) in zip(line, groups, strict=True):
            if letter in ("W", LETTERS[ABSENT]):
                new += letter
                continue
            across = [slice(i * n + left, i * n + right) for i in range(first, after)]
            down = [slice(first * n + j, (after - 1) * n + j + 1, n) for j in range(left, right)]
            row_counts = [(sum(ok[part]), sum(dropped[part])) for part in across]
            answered, lost = sum(a for a, _ in row_counts), sum(d for _, d in row_counts)
            colour = drop_colour(answered, lost, green, red)
            if colour == YELLOW and at_least(lost, answered * BACKGROUND) >= CHANCE:
                colour = GREEN
            if colour == RED:
                column_counts = [(sum(ok[part]), sum(dropped[part])) for part in down]
                if not all(
                    2 * sum(d > red * a for a, d in part) > sum(a > 0 for a, _ in part)
                    for part in (row_counts, column_counts)
                ):
                    colour = GREEN
            new += LETTERS[colour]
        found.append(new)
    return tuple(found)


def classify(found: Sequence[str], podsets: Sequence[str]) -> Pattern:
    """The pattern of the blocks ``found``, a row of letters for each of ``podsets``."""
    n = len(podsets)

    def pattern(*findings: PatternFinding) -> Pattern:
        return Pattern(findings, tuple(podsets), tuple(found))

    def all_are(colour: str, cells: Iterable[tuple[int, int]]) -> bool:
        return all(found[i][j] in (colour, LETTERS[ABSENT]) for i, j in cells)

    whole = [(i, j) for i in range(n) for j in range(n)]
    diagonal = [(i, i) for i in range(n)]
    apart = [(i, j) for i, j in whole if i != j]
    if not n or not set("".join(found)) - {LETTERS[ABSENT]}:
        return pattern(PatternFinding(UNCLASSIFIED))
    if all_are("G", whole):
        return pattern(PatternFinding(NORMAL))
    if n > 1 and all_are("R", apart) and all_are("G", diagonal):
        return pattern(PatternFinding(SPINE))
    broken = {i: found[i][i] for i in range(n) if found[i][i] in _CROSS}
    if 0 < len(broken) < n and all(found[i][j] in (_expected(broken, i, j), LETTERS[ABSENT]) for i, j in whole):
        return pattern(*[PatternFinding(_CROSS[colour], podsets[k]) for k, colour in broken.items()])
    for k in range(n) if n > 2 else ():
        cross = {found[i][j] for i, j in apart if k in (i, j)} - {LETTERS[ABSENT]}
        if (
            len(cross) == 1
            and (colour := cross.pop()) in _CROSS
            and all_are("G", [(i, j) for i, j in whole if k not in (i, j)])
        ):
            return pattern(PatternFinding(_CROSS[colour], podsets[k]))
    return pattern(PatternFinding(UNCLASSIFIED))


def classify_dcs(found: Sequence[str], dcs: Sequence[str]) -> Pattern:
    """The pattern of the blocks ``found`` between data centres, a row of letters for each of ``dcs``."""
    n = len(dcs)
    inside = {i: found[i][i] for i in range(n)}
    apart = {(i, j): found[i][j] for i in range(n) for j in range(n) if i != j}

    def pattern(*findings: PatternFinding) -> Pattern:
        return Pattern(findings or (PatternFinding(UNCLASSIFIED),), tuple(dcs), tuple(found))

    def good(cells: Iterable[str]) -> bool:
        return set(cells) <= {"G", LETTERS[ABSENT]}

    if not set("".join(found)) - {LETTERS[ABSENT]}:
        return pattern()
    if good(inside.values()):
        if good(apart.values()):
            return pattern(PatternFinding(NORMAL))
        for colour, wan in (("R", WAN_FAILURE), ("W", WAN_DOWN)):
            if set(apart.values()) <= {colour, LETTERS[ABSENT]}:
                return pattern(PatternFinding(wan))
    elif good(apart.values()):
        troubled = [k for k in range(n) if inside[k] == "R"]
        if troubled and good(inside[k] for k in range(n) if k not in troubled):
            return pattern(*[PatternFinding(DC_INSIDE, dcs[k]) for k in troubled])
    # Crosses: all blocks from and to a data centre, apart from the block within it.
    crosses = {}
    for k in range(n):
        cross = {colour for at, colour in apart.items() if k in at} - {LETTERS[ABSENT]}
        if len(cross) == 1 and (n > 2 or inside[k] in cross) and (colour := cross.pop()) in _CROSS:
            crosses[k] = colour
    if len(crosses) == n:  # data centres without fault inside only lack the others
        crosses = {k: colour for k, colour in crosses.items() if inside[k] == colour}
    if len(crosses) == n or not good(inside[k] for k in range(n) if k not in crosses):
        return pattern()
    rest = {at: colour for at, colour in apart.items() if not crosses.keys() & set(at)}
    links = {(i, j): c for (i, j), c in rest.items() if i < j and c == rest[j, i] and c in _CROSS}
    if not good(colour for (i, j), colour in rest.items() if (min(i, j), max(i, j)) not in links):
        return pattern()
    names = {"W": LINK_DOWN, "R": LINK_FAILURE}
    return pattern(
        *[PatternFinding(_cross(colour, inside[k]), dcs[k]) for k, colour in crosses.items()],
        *[PatternFinding(names[colour], dcs[i], dcs[j]) for (i, j), colour in links.items()],
    )


def _cross(colour: str, inside: str) -> str:
    if colour == "R":
        return DC_FAILURE
    return DC_DOWN if inside in ("W", LETTERS[ABSENT]) else CUT_OFF


def _expected(broken: dict[int, str], i: int, j: int) -> str:
    """The expected colour of a block if only the podsets ``broken`` have faults: white wins over red."""
    ends = broken.get(i, "G") + broken.get(j, "G")
    return "W" if "W" in ends else "R" if "R" in ends else "G"
