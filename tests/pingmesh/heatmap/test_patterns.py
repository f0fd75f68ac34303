"""Patterns of heat maps: the four pictures of the paper, noise, several broken podsets; probabilities against scipy."""

from __future__ import annotations

import random

import pytest
import scipy  # loads scipy.stats at its first use
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.pingmesh.heatmap import patterns
from confluo_tools.pingmesh.heatmap.patterns import ABSENT, GREEN, LETTERS, NONE, RED, YELLOW, classify
from heatmap_lab import canonical_matrices

PODSETS = ["ps1", "ps2", "ps3"]
CANONICAL = ["normal", "podset down: ps2", "podset failure: ps2", "spine failure"]


def matrix(blocks: list[str], pods: int = 4) -> list[bytearray]:
    """Rows of colours from letters of blocks."""
    return [
        bytearray(LETTERS.index(line[j // pods]) for j in range(pods * len(blocks)))
        for line in blocks
        for _ in range(pods)
    ]


def groups(n: int, pods: int = 4) -> list[tuple[int, int]]:
    return [(i * pods, i * pods + pods) for i in range(n)]


def seen(rows: list[bytearray], n: int, pods: int = 4) -> str:
    found = patterns.blocks([bytes(row) for row in rows], groups(n, pods))
    return classify(found, [f"ps{i + 1}" for i in range(n)]).text


def pictures() -> list[list[bytearray]]:
    """The four canonical matrices as colours."""
    return [
        [bytearray(patterns.colours([round(1e6 * v) for v in line], 4_000_000, 5_000_000)) for line in matrix]
        for matrix in canonical_matrices()
    ]


def test_the_canonical_pictures() -> None:
    assert [seen(rows, 3) for rows in pictures()] == CANONICAL


@pytest.mark.parametrize("seed", range(50))
def test_noise_does_not_change_the_name(seed: int) -> None:
    """5 % of the cells, anywhere, are of any other colour."""
    rng = random.Random(seed)
    for rows, name in zip(pictures(), CANONICAL, strict=True):
        for cell in rng.sample(range(144), 7):
            i, j = divmod(cell, 12)
            rows[i][j] = rng.choice([c for c in (NONE, GREEN, YELLOW, RED) if c != rows[i][j]])
        assert seen(rows, 3) == name


@pytest.mark.parametrize(
    ("blocks", "name"),
    [
        (["GWGW", "WWWW", "GWGW", "WWWW"], "podset down: ps2, ps4"),
        (["RRRR", "RRRR", "RRGG", "RRGG"], "podset failure: ps1, ps2"),
        (["WWWW", "WGGR", "WGGR", "WRRR"], "podset down: ps1; podset failure: ps4"),
        (["GR", "RG"], "spine failure"),
        (["GR", "RR"], "podset failure: ps2"),
        (["GW", "WW"], "podset down: ps2"),
        (["GWG", "WGW", "GWG"], "podset down: ps2"),  # cut off, alive within
        (["GRG", "RYR", "GRG"], "podset failure: ps2"),
        (["GW", "WG"], "unclassified"),  # which of the two?
        (["RRR", "RGR", "RRG"], "unclassified"),  # ps1 and the spine, or ps1 and another: who knows
        (["RRR", "RRR", "RRR"], "unclassified"),
        (["WWW", "WWW", "WWW"], "unclassified"),
        (["GGG", "GGY", "GGG"], "unclassified"),
        (["GRG", "GGG", "GGG"], "unclassified"),  # one way only
        (["GRG", "RRR", "GWG"], "unclassified"),
        (["G"], "normal"),
        (["R"], "unclassified"),
        ([".GG", "G.G", "GG."], "normal"),  # podsets of one pod of one server
        ([".RR", "R.R", "RR."], "spine failure"),
        ([".RG", "R.R", "GR."], "podset failure: ps2"),
        ([], "unclassified"),
    ],
)
def test_blocks_and_their_names(blocks: list[str], name: str) -> None:
    assert classify(blocks, [f"ps{i + 1}" for i in range(len(blocks))]).text == name


def test_a_colour_needs_more_than_half_of_a_block() -> None:
    assert patterns.majority([0, 8, 0, 8, 0]) == "?"
    assert patterns.majority([0, 7, 0, 9, 0]) == "R"
    assert patterns.majority([0, 1, 0, 0, 15]) == "G"  # nothing was to be measured in the others
    assert patterns.majority([0, 0, 0, 0, 16]) == "."
    half = matrix(["GGG", "GGG", "GGG"])
    for row in half[:2]:
        row[:] = bytes([RED]) * 12
    assert seen(half, 3) == "unclassified"


def test_limits_as_in_the_paper() -> None:
    """Green < 4 ms, yellow 4 to 5 ms, red > 5 ms, white none."""
    values = [0, 1, 3_999_999, 4_000_000, 5_000_000, 5_000_001, 1 << 62]
    assert list(patterns.colours(values, 4_000_000, 5_000_000)) == [NONE, GREEN, GREEN, YELLOW, YELLOW, RED, RED]


@given(st.integers(0, 200), st.floats(0, 600))
def test_the_chance_of_drops(k: int, mean: float) -> None:
    assert patterns.at_least(k, mean) == pytest.approx(scipy.stats.poisson.sf(k - 1, mean), rel=1e-6, abs=1e-12)


def test_drops_are_red_only_beyond_chance() -> None:
    assert patterns.drop_colour(60, 1, 5e-4, 1e-3) == YELLOW  # 1.7 %, and nothing
    assert patterns.drop_colour(60, 3, 5e-4, 1e-3) == RED
    assert patterns.drop_colour(2400, 2, 5e-4, 1e-3) == YELLOW
    assert patterns.drop_colour(2400, 6, 5e-4, 1e-3) == RED
    assert patterns.drop_colour(150_000, 38, 5e-4, 1e-3) == GREEN
    assert patterns.drop_colour(150_000, 200, 5e-4, 1e-3) == RED
    assert patterns.drop_colour(0, 0, 5e-4, 1e-3) == NONE
    assert list(patterns.drop_colours([0, 5, 10_000], [0, 0, 20], 5e-4, 1e-3)) == [NONE, GREEN, RED]


def drops(rates: list[str], pods: int, probes: int, rng: random.Random) -> tuple[list[bytes], list[int], list[int]]:
    """Cells of ``probes`` answered, dropped by chance at the rate of their block: h 1e-4, x 1 %; - none at all."""
    ok, dropped = [], []
    chance = {"h": 1e-4, "x": 1e-2, "-": 0.0}
    for line in rates:
        for _ in range(pods):
            for letter in line:
                for _ in range(pods):
                    ok.append(0 if letter == "-" else probes)
                    dropped.append(sum(rng.random() < chance[letter] for _ in range(ok[-1])))
    n = pods * len(rates)
    flat = patterns.drop_colours(ok, dropped, 5e-4, 1e-3)
    return [flat[i : i + n] for i in range(0, n * n, n)], ok, dropped


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("rates", "name"),
    [
        (["hhh", "hhh", "hhh"], "normal"),
        (["hxx", "xhx", "xxh"], "spine failure"),
        (["hxh", "xxx", "hxh"], "podset failure: ps2"),
        (["h-h", "---", "h-h"], "podset down: ps2"),
    ],
)
def test_blocks_of_drops_are_judged_by_all_their_probes(rates: list[str], name: str, seed: int) -> None:
    """120 probes a cell: most cells of a block that loses 1 % have one drop or two, which are nothing by themselves."""
    rows, ok, dropped = drops(rates, 4, 120, random.Random(seed))
    found = patterns.drop_blocks(rows, ok, dropped, groups(3), 5e-4, 1e-3)
    assert classify(found, PODSETS).text == name


def test_one_bad_pod_is_no_block_of_drops() -> None:
    """A pod that loses a fifth of what it sends colours its row, not its podset's blocks."""
    n, ok = 12, [2400] * 144
    dropped = [480 if i // n == 1 else 0 for i in range(n * n)]
    flat = patterns.drop_colours(ok, dropped, 5e-4, 1e-3)
    rows = [flat[i : i + n] for i in range(0, n * n, n)]
    assert patterns.drop_blocks(rows, ok, dropped, groups(3), 5e-4, 1e-3) == ("GGG",) * 3


@given(st.integers(2, 6), st.integers(1, 5), st.data())
def test_renaming_and_turning_change_nothing(n: int, pods: int, data: st.DataObject) -> None:
    """Podsets in another order, and from and to exchanged: the same findings."""
    letters = [["G"] * n for _ in range(n)]
    broken = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    down = {k for k in broken if data.draw(st.booleans())}
    for k in broken:
        for i in range(n):
            for a, b in ((i, k), (k, i)):
                letters[a][b] = "W" if {a, b} & down else "R"
    order = data.draw(st.permutations(range(n)))
    names = [f"ps{k}" for k in order]
    rows = matrix(["".join(letters[a][b] for b in order) for a in order], pods)
    found = classify(patterns.blocks([bytes(r) for r in rows], groups(n, pods)), names)
    expected = {("podset down" if k in down else "podset failure", f"ps{k}") for k in broken} or {("normal", "")}
    assert {(f.name, f.podset) for f in found.findings} == expected
    turned = [bytes(column) for column in zip(*rows, strict=True)]
    assert classify(patterns.blocks(turned, groups(n, pods)), names).findings == found.findings


def test_what_is_absent_is_not_white() -> None:
    rows = matrix(["GGG", "GGG", "GGG"], 1)
    for i in range(3):
        rows[i][i] = ABSENT
    assert patterns.blocks([bytes(r) for r in rows], groups(3, 1)) == (".GG", "G.G", "GG.")
