"""--local: times without a zone in expressions, in every command that has expressions."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import cli, multilog
from confluo_tools.expr import compile
from confluo_tools.expr.local_times import without_local_times
from confluo_tools.expr.syntax import ExprError
from confluo_tools.schema import builtin
from monitor_writer import rows_of
from running import environment, run
from twin_probe_tally import SCHEMA as PROBE
from twin_probe_tally import block, probe

SECOND = 10**9
TEXTS = [
    "ts < 2026-10-25T02:30",
    "ts >= 2026-10-25T02:30 and len > 3",
    "ts > 2026-03-29T02:30:15.25 or not (dst_port == 80 or ts <= 2026-03-29)",
    "ts == 2026-10-25",
    "ts != 2026-10-25T02",
    "ts in {2026-10-25, 2026-01-01T12:00+05:30, @1700000000.5}",
    "ts in 2026-10-24..2026-10-26T02",
    "ts in 2026-10-25..",
    "ts == '2026-10-25 02:30'",
    "ts > 2026-10-25T02:30Z and ts < 2026-10-26",
    "ts < 1969-06-01T00:00:00.000000001",
    "len > 3 && filter slow",
]


@pytest.fixture(params=["Europe/Berlin", "America/New_York", "Australia/Adelaide"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize("text", TEXTS)
def test_moments_mean_what_local_times_mean(zone: str, text: str) -> None:
    """Also in another zone: the rewritten text is compiled as UTC."""
    schema, filters = builtin("header64"), {"slow": "ts < 2026-01-01"}
    plain = without_local_times(text, schema)
    assert compile(plain, schema, filters=filters).tree == compile(text, schema, filters=filters, local=True).tree
    assert without_local_times(plain, schema) == plain


def test_what_cannot_be_read_stays_an_error() -> None:
    schema = builtin("header64")
    assert without_local_times("no_field > 2026-01-01", schema) == "no_field > 2026-01-01"
    for text in ("ts > 2026-13-01", "ts > ("):
        with pytest.raises(ExprError):
            without_local_times(text, schema)


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half an hour of 1970; the first half loses much more."""
    rng = random.Random(3)
    rows: list[dict[str, Any]] = []
    for i in range(4000):
        a, b = rng.sample(range(4), 2)
        bad = i < 2000 and rng.random() < 0.1
        row = probe(ts=i * 450_000_000, src=f"s{a}", dst=f"s{b}", src_pod=f"p{a // 2}", dst_pod=f"p{b // 2}", level=2)
        rows.append(
            {**row, "rtt": 0 if bad else 250_000, "elapsed": 10**9 if bad else 300_000, "outcome": 2 if bad else 1}
        )
    path = tmp_path_factory.mktemp("probes") / "p.arrows"
    with cli.RecordOutput(PROBE, "stream", path=str(path)) as out:
        out.write(block(rows))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("sla", "--by", "all", "-J"),
        ("verdict", "--servers", "s1,s2", "-J"),
        ("blackholes", "--stats", "-J"),
        ("drops", "--stats", "-J"),
        ("heatmap", "--dc", "", "-T"),
    ],
)
def test_verbs_of_pingmesh(probes: Path, words: tuple[str, ...]) -> None:
    env = environment(TZ="Europe/Berlin")
    here, moment, utc = (
        run("confluo-pingmesh", words[0], probes, *words[1:], "-e", *more, env=env)
        for more in (["ts < 1970-01-01T01:15", "--local"], ["ts < @900"], ["ts < 1970-01-01T01:15"])
    )
    assert (here.returncode, printed(here)) == (moment.returncode, printed(moment))
    assert printed(here) != printed(utc)


def printed(done: subprocess.CompletedProcess[bytes]) -> tuple[bytes, bytes]:
    """Output and messages, without times of the run."""
    return done.stdout, re.sub(rb"[\d.]+ s\b", b"", done.stderr)


def test_triggers(tmp_path: Path) -> None:
    start = 1_700_000_000 * SECOND  # 2023-11-14T22:13:20Z
    log = multilog.create(tmp_path / "x.ml", builtin("header64"))
    with log.writer(ahead=-1) as writer:
        writer.append(rows_of([start + i * SECOND for i in range(60)], [1] * 60, [80] * 60))
    log.close()
    words = [tmp_path / "x.ml", "--since", f"@{start // SECOND - 5}", "-T", "-f", "ts,event,value"]
    env = environment(TZ="Europe/Berlin")
    here, moment, utc = (
        run("confluo-monitor", *words, "-t", f"x: count > 0 over 2s where ts < {text}", *more, env=env)
        for text, *more in (("2023-11-14T23:14", "--local"), ("2023-11-14T22:14Z",), ("2023-11-14T23:14",))
    )
    assert here.returncode == 0
    assert here.stdout == moment.stdout != utc.stdout
