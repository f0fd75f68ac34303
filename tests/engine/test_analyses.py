"""Analyses of probes and paths on engines: what one core prints, to the last digit."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from archive_lab import run_all
from confluo_tools import multilog
from confluo_tools.core.block.block import Block, Picks
from confluo_tools.engine import forks
from confluo_tools.engine.forks import Forks
from confluo_tools.engine.partial import partial_class
from confluo_tools.engine.reader import EngineReader, gather
from confluo_tools.engine.several_partial import SeveralPartial
from confluo_tools.engine.state_pieces import pack, unpack
from confluo_tools.errors import ConfluoError
from confluo_tools.expr import compile
from confluo_tools.multilog.open_log import open_log
from confluo_tools.network.topology import Clos
from confluo_tools.pingmesh.analysis import pair_tally
from confluo_tools.pingmesh.analysis.drop_tally import request_drops
from confluo_tools.pingmesh.analysis.probe_tally import WindowTally
from confluo_tools.pingmesh.analysis.silent_tally import SilentTally
from confluo_tools.vote.path_partial import PathPartial
from confluo_tools.vote.simulator import CERTAIN, ClosSettings, ClosSimulation
from dask_lab import DEADLINE, DaskCluster, until
from engine_lab import Inline
from probe_records import Simulated, fault
from running import BIN, popen, run

SECOND = 1_000_000_000


def store(path: Path, blocks: Iterable[Block], schema: Any, seed: int) -> str:
    """A log of two lanes and many segments; rows of one time may be in both."""
    rng = random.Random(seed)
    with multilog.create(path, schema) as log:
        for block in blocks:
            lane = [rng.random() < 0.5 for _ in range(block.rows)]
            edges = sorted({0, block.rows, *(rng.randrange(block.rows + 1) for _ in range(4))})
            for first, after in pairwise(edges):
                writers = [log.writer(ahead=-1), log.writer(ahead=-1)]
                for side, writer in enumerate(writers):
                    rows = [i for i in range(first, after) if lane[i] == side]
                    if rows:
                        writer.append(block.take(Picks.of(block.rows, rows)))
                    writer.close()
    return str(path)


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Probes of a fleet with a ToR that drops packets and one with a black hole."""
    faults = [fault("tor_drops", "p001", 0.1), fault("blackhole1", "p003", 0.3), fault("host_slow", "p005s01")]
    reader = Simulated(*faults, grid=(1, 2, 3, 4), span=600 * SECOND)
    return store(tmp_path_factory.mktemp("probes") / "probes.ml", reader, reader.schema, 1)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Flows of three epochs through a Clos with two links that drop packets."""
    settings = ClosSettings(failures=2, epochs=3, healthy=2, seed=5, deaths=True, silence=CERTAIN // 100)
    simulation = ClosSimulation(Clos(2, 4, 3, 4, 4), settings)
    folder = tmp_path_factory.mktemp("paths")
    return store(folder / "paths.ml", simulation.blocks(), simulation.schema, 2)


@pytest.fixture(scope="module")
def archived(probes: str, paths: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The archives of both logs."""
    folder = tmp_path_factory.mktemp("archives")
    for path in (probes, paths):
        with multilog.open(path, readonly=True) as log:
            run_all(log, folder / Path(path).stem, remove=False)
    return {path: str(folder / Path(path).stem) for path in (probes, paths)}


PINGMESH = [
    "sla --window 2m --by pod_pair",
    "sla --by src,dst_port --rule p99>1ms --top 9",
    "sla --window 3m --alerts --signature linux",
    "drops --top 5",
    "drops --window 4m -e level==dc",
    "blackholes --pairs",
    "blackholes --window 5m --slice 30s",
    "heatmap --window 2m",
    "heatmap --by server --metric drop --window all --patterns",
    "verdict --servers p001s01,p001s02 --since 2026-01-01T00:03:00Z --until 2026-01-01T00:08:00Z",
]
VOTE = [
    "--epoch 30s",
    "--model mle --top 50",
    "--by switch --epoch 30s --top 50",
    "--flows --epoch 30s",
    "--score --model vote,mle,cover --healthy none",
]
CASES = [("confluo-pingmesh", words) for words in PINGMESH] + [("confluo-vote", words) for words in VOTE]


def answer(program: str, words: str, path: str, *more: str) -> tuple[int, bytes, bytes]:
    verb, *rest = words.split()
    given = [verb, path, *rest] if program == "confluo-pingmesh" else [path, verb, *rest]
    done = run(program, *given, "-J", "--stats", *more) if "heatmap" not in words else run(program, *given, "-J", *more)
    took = [line for line in done.stderr.splitlines() if b"judged in" not in line]
    rows = re.sub(rb'"took":"?[^,}]*', b"", done.stdout)
    return done.returncode, rows, b"\n".join(took)


@pytest.mark.parametrize(("program", "words"), CASES)
def test_every_analysis_prints_what_one_core_prints(
    program: str, words: str, probes: str, paths: str, archived: dict[str, str]
) -> None:
    path = probes if program == "confluo-pingmesh" else paths
    one = answer(program, words, path)
    assert one[0] in (0, 1)
    assert one[1].count(b"\n") >= ("verdict" not in words and "patterns" not in words)
    assert answer(program, words, path, "--engine", "local:3") == one
    if words in (PINGMESH[0], PINGMESH[3], VOTE[0]):
        inside = answer(program, words, archived[path])
        assert answer(program, words, archived[path], "--engine", "local:2") == inside


@pytest.mark.parametrize(("program", "words"), [CASES[i] for i in (0, 3, 5, 9, 10, 13)])
def test_a_dask_cluster_prints_what_one_core_prints(
    program: str, words: str, probes: str, paths: str, dask: DaskCluster
) -> None:
    path = probes if program == "confluo-pingmesh" else paths
    assert answer(program, words, path, "--engine", dask.engine) == answer(program, words, path)


def test_a_worker_of_dask_is_killed(probes: str, dask: DaskCluster) -> None:
    words = ["sla", probes, "--by", "pod_pair", "--window", "2m", "-J"]
    with dask.workers[0].busy(), dask.workers[1].busy(), dask.worker() as lost, lost.busy():
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        question = popen([BIN / "confluo-pingmesh", *words, "--engine", dask.engine], stdin=subprocess.DEVNULL, **pipes)
        until(lost.has_tasks, "tasks for a worker")
    out, err = question.communicate(timeout=DEADLINE)
    assert (question.returncode, out, err) == (0, run("confluo-pingmesh", *words).stdout, b"")


def partials(name: str, schema: Any) -> Any:
    """An empty partial of an analysis."""
    if name == "probes":
        return WindowTally(schema, ["src_pod", "dst_pod", "src"], window=60 * SECOND, limits=[500_000])
    if name == "pairs":
        made = pair_tally.PairPass(pair_tally.PassSource(schema, "probes", None, {}))
        request_drops(made, 120 * SECOND, None)
        return made
    if name == "silent":
        return SilentTally(schema)
    if name == "several":
        near = compile("dst_pod == p002", schema)
        return SeveralPartial(schema, [(near, WindowTally(schema, ["src"])), (near, SilentTally(schema))])
    options = {"switches": False, "healthy": 1, "keep": True, "alias": {3: 4}, "tor_of": {1: 2}}
    return PathPartial(schema, options, 30 * SECOND)


NAMES = ["probes", "pairs", "silent", "several", "paths"]


@pytest.mark.parametrize("name", NAMES)
def test_workers_that_share_only_files_give_the_same_state(name: str, probes: str, paths: str) -> None:
    path = paths if name == "paths" else probes
    states = []
    for runner in (None, Forks(3), Inline(), Inline(slots=7, damage=(0, 2))):
        reader: Any = open_log(path)
        partial = partials(name, reader.schema)
        rows = gather(reader if runner is None else EngineReader(reader, runner), compile("", reader.schema), partial)
        states.append((rows, stable(partial)))
        assert partial_class(name) is type(partial)
    assert all(state == states[0] for state in states)


def stable(partial: Any) -> Any:
    """What a partial says, in an order that the split into shares does not change."""
    if isinstance(partial, PathPartial):
        out = []
        for begin, tally in partial.epochs():
            from confluo_tools.core.vote.flow_order import settle

            settle(tally)
            flows = [tally.flow(i) for i in range(tally.flows)]
            kept = [bytes(block.buffer(i)) for block in tally.kept for i in range(block.layout.n)]
            out.append((begin, flows, kept, [tally.key(i) for i in range(tally.components)], tally.healthy_pairs()))
        return out
    if isinstance(partial, pair_tally.PairPass):
        sums = [list(one.rows(partial.text)) for one in partial._sums]
        return sums, [list(found) for _, found in partial._looks], partial.spans, partial.rows, partial.others
    return partial.dump()


def test_many_epochs_wait_as_bytes(paths: str) -> None:
    def tallied(most: int) -> Any:
        reader: Any = open_log(paths)
        options = {"switches": False, "healthy": 1, "keep": True, "alias": None, "tor_of": None}
        partial = PathPartial(reader.schema, options, 30 * SECOND)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("confluo_tools.vote.path_partial.MAX_OPEN", most)
            gather(reader, compile("", reader.schema), partial)
            return stable(partial)

    assert tallied(1) == tallied(64)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_states_are_refused(name: str, probes: str, paths: str) -> None:
    """Whatever a worker sends, what it says is refused or counted; nothing crashes."""
    reader: Any = open_log(paths if name == "paths" else probes)
    partial = partials(name, reader.schema)
    gather(reader, compile("ts < @1767225720", reader.schema), partial)
    state, rng, refused = partial.dump(), random.Random(7), 0
    for n in range(120):
        bad = bytearray(state)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(bad))
            if n % 3:
                bad[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(1, 3))
            else:
                bad[at] = rng.choice([0, 1, 127, 128, 255])
        fresh = partial.fresh()
        try:
            fresh.merge(bytes(bad))
        except (ValueError, MemoryError, ConfluoError):
            refused += 1
        else:
            fresh.dump()
    for size in {*range(min(len(state), 60)), len(state) - 1}:
        with pytest.raises(ValueError):  # noqa: PT011 - each state has its own words
            partial.fresh().merge(state[:size])
    assert refused > 60


@pytest.mark.parametrize("settings", [{}, {"by": 1}, {"parts": [[1]]}, {"options": {"keep": 1}, "length": 0}, {"a": 1}])
def test_settings_that_are_not_valid(settings: dict[str, Any], probes: str, paths: str) -> None:
    for name in NAMES:
        schema = open_log(paths if name == "paths" else probes).schema
        if name != "silent":
            with pytest.raises(ValueError, match="invalid settings"):
                partial_class(name).of(schema, settings)


def test_pieces() -> None:
    pieces = [b"", b"abc", bytes(9)]
    assert unpack(pack(pieces)) == pieces
    for data in (b"", bytes(7), pack(pieces)[:-1], pack(pieces) + b"x", b"\xff" * 40):
        with pytest.raises(ValueError, match="share"):
            unpack(data)
    with pytest.raises(ValueError, match="number"):
        unpack(pack(pieces), 2)


def test_a_worker_that_dies_and_a_part_that_is_damaged(
    probes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from confluo_tools.pingmesh.analysis import sla_command

    shutil.copytree(probes, tmp_path / "bad.ml")
    segment = sorted((tmp_path / "bad.ml").glob("lane-001/*.arrow"))[1]
    data = bytearray(segment.read_bytes())
    for at in range(len(data) // 8, len(data) // 2, 4096):
        data[at] ^= 255
    segment.write_bytes(data)

    def written(file: int, pieces: Sequence[bytes]) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    words = [str(tmp_path / "bad.ml"), "--by", "pod", "-T"]
    said = []
    for more in ([], ["--engine", "local:3"], ["--engine", "local:4"]):
        if "local:4" in more:
            monkeypatch.setattr(forks, "_written", written)
        status = sla_command.main(words + more)
        said.append((status, *capfd.readouterr()))
    assert said[0] == said[1] == said[2]
    assert said[0][0] == 2
    assert "damaged" in said[0][2]


def test_a_state_that_is_not_valid_is_one_line(probes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowTally, "dump", lambda self: b"CFPROBE\x01nonsense")
    reader: Any = open_log(probes)
    tally = WindowTally(reader.schema, ["src"])
    with pytest.raises(ConfluoError, match="a worker gave a state that is not valid"):
        gather(EngineReader(reader, Forks(2)), compile("", reader.schema), tally)


@pytest.mark.parametrize("program", ["confluo-pingmesh sla", "confluo-pingmesh drops", "confluo-vote"])
def test_an_engine_does_not_wait_for_records(program: str, probes: str) -> None:
    name, *verb = program.split()
    window = ["--window", "10m"] if verb else []
    done = run(name, *verb, probes, "--follow", *window, "--engine", "local")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--engine: reads what is there, not what arrives; leave --follow out" in done.stderr
    done = run(name, *verb, "-", "--engine", "local", stdin=b"")
    assert done.returncode == 2
