"""confluo-replay sample: runs of any records, group by group, and the records of runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import units
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.replay.sampling import rate_runs
from confluo_tools.schema import Schema
from running import run
from sessions import Shell

SCHEMA = """schema: call
fields:
- {name: user, type: text(8)}
- {name: when, type: time, unit: ns}
- {name: size, type: u32}
- {name: ip_version, type: u8}
- {name: ip, type: ip, version: ip_version}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "call.yaml").write_text(SCHEMA)
    return Shell(tmp_path)


def table(lines: list[str]) -> list[list[str]]:
    return [line.split("\t") for line in lines if not line.startswith("#")]


def calls(path: Path, number: int) -> dict[tuple[str, str], list[int]]:
    """Records of three users as NDJSON; {(user, address): times}."""
    rng = random.Random(number)
    now, found, lines = 10**18, dict[tuple[str, str], list[int]](), []
    for _ in range(number):
        now += rng.choice((1000, 1000, 5000, rng.randrange(100_000)))
        user, ip = rng.choice("abc"), rng.choice(("10.0.0.1", "2001:db8::1"))
        found.setdefault((user, ip), []).append(now)
        version = 6 if ":" in ip else 4
        lines.append(
            f'{{"user":"{user}","when":"{units.format_time(now)}","size":7,"ip_version":{version},"ip":"{ip}"}}\n'
        )
    path.write_text("".join(lines))
    return found


def test_times_come_back_within_the_threshold_group_by_group(shell: Shell, tmp_path: Path) -> None:
    times = calls(tmp_path / "calls.ndjson", 3000)
    assert shell.run("confluo-convert calls.ndjson --schema call.yaml -w calls.ml") == (0, [])
    for threshold in (0, 3000, 50_000):
        by = f"--by user,ip_version,ip --threshold {threshold}ns"
        assert shell.run(f"confluo-replay sample calls.ml {by} -w runs{threshold}.ml")[0] == 0
        status, lines = shell.run(f"confluo-query runs{threshold}.ml -f user,ip,when,count,step -T -n")
        assert status == 0
        wanted = sum(len(list(rate_runs(its, threshold))) for its in times.values())
        assert len(table(lines)) == wanted
        status, lines = shell.run(f"confluo-replay sample --expand runs{threshold}.ml -f when,user,ip -T -n")
        assert status == 0
        rows = table(lines)
        found: dict[tuple[str, str], list[int]] = {}
        for when, user, ip in rows:
            found.setdefault((user, ip), []).append(units.time(when))
        assert found.keys() == times.keys()
        for key, its in found.items():
            assert len(its) == len(times[key])
            assert max(abs(a - b) for a, b in zip(its, times[key], strict=True)) <= threshold
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)


def test_gap_based_sampling_has_fewer_runs_and_no_bound(shell: Shell, tmp_path: Path) -> None:
    rows = [{"when": 10**18 + 1000 * n + (1000 * max(0, n - 500))} for n in range(1000)]  # the rate halves
    schema = Schema.from_dict({"schema": "call", "fields": [{"name": "when", "type": "time"}]})
    write(tmp_path / "calls.ml", schema, rows)
    assert shell.run("confluo-replay sample calls.ml --gap 5us -T -f count")[1][2:] == ["1000"]
    assert shell.run("confluo-replay sample calls.ml -T -f count")[1][2:] != ["1000"]
    status, lines = shell.run("confluo-replay sample calls.ml --stats -w runs.ml")
    assert (status, lines) == (0, ["confluo-replay sample: 1000 records, 2 runs"])


def write(path: Path, schema: Schema, rows: list[dict[str, Any]]) -> None:
    from confluo_tools.cli.log_output import LogOutput

    with LogOutput(str(path), schema, append=False, add_columns=False) as log:
        log.write(block_of_rows(schema, rows), None)


def test_flows_are_the_groups_of_packets(shell: Shell) -> None:
    status, lines = shell.run("confluo-replay sample examples/data/vlan.pcap.gz --threshold 0 -T | head -1")
    assert lines[0].split("\t")[1:] == [
        "ts", "ip_version", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "count", "step"
    ]  # fmt: skip
    status, lines = shell.run("confluo-replay sample examples/data/vlan.pcap.gz --threshold 0 -o stream | "
                              "confluo-query - --agg 'sum(count)' -T")  # fmt: skip
    assert status == 0
    assert lines[-1] == shell.run("confluo-query examples/data/vlan.pcap.gz --count")[1][0]


@pytest.mark.parametrize("form", ["tsv", "csv", "ndjson", "json", "arrow", "parquet"])
def test_runs_of_every_format_are_expanded(shell: Shell, form: str) -> None:
    """Text has no kind of records, and CSV and JSON have no types."""
    capture, fields = "examples/data/vlan.pcap.gz", "-f ts,flow -T | tail -n +3 | sort"
    _, wanted = shell.run(f"confluo-query {capture} {fields}")
    assert shell.run(f"confluo-replay sample {capture} --threshold 0 -w runs.{form}")[0] == 0
    assert shell.run(f"confluo-replay sample --expand -q runs.{form} {fields} 2>&1") == (0, wanted)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("calls.ml --by nothing", 2, "calls.ml: no field 'nothing'"),
        ("calls.ml --threshold 5", 2, "--threshold: '5' is not a duration"),
        ("calls.ml --expand", 2, "calls.ml: holds records of kind 'call', not runs"),
        ("floats.ml --expand", 2, "floats.ml: holds records of kind 'record', not runs"),
        ("minus.ml --expand", 2, "minus.ml: a run of -1 records at steps of 5 ns is not possible"),
        ("long.ml --expand", 2, "long.ml: a run of 2 records at steps of 9223372036854775808 ns is not possible"),
        ("late.ml --expand", 2, "late.ml: a run of 4 records at steps of 4611686018427387904 ns is not possible"),
        ("apart.ml --expand", 2, "apart.ml: the times are more than 292 years apart; expand a part of it"),
        ("many.ml", 2, "many.ml: holds runs; --expand makes single records of them"),
        ("calls.ml --expand --gap 1us", 2, "--expand takes runs as they are; leave --by and --gap out"),
        ("timeless.ml", 2, "timeless.ml: the records have no time"),
        ("empty.ml", 1, ""),
        ("many.ml --expand", 2, "many.ml: more than 268435456 records; expand a part of it"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, words: str, status: int, said: str) -> None:
    time = {"name": "when", "type": "time"}
    guessed = [time, {"name": "count", "type": "i64"}, {"name": "step", "type": "u64"}]
    floats = [time, {"name": "count", "type": "i64"}, {"name": "step", "type": "f64"}]
    counted = [time, {"name": "count", "type": "u32"}, {"name": "step", "type": "duration"}]
    rows: list[dict[str, Any]]
    for name, kind, fields, rows in (
        ("calls", "call", [time], [{"when": 5}]),
        ("empty", "call", [time], []),
        ("timeless", "call", [{"name": "size", "type": "u32"}], [{"size": 5}]),
        ("floats", "record", floats, [{"when": 5, "count": 2, "step": 0.5}]),
        ("minus", "record", guessed, [{"when": 5, "count": -1, "step": 5}]),
        ("long", "record", guessed, [{"when": 5, "count": 2, "step": 1 << 63}]),
        ("late", "run", counted, [{"when": 5, "count": 4, "step": 1 << 62}]),
        ("apart", "run", counted, [{"when": 5 * n, "count": 2, "step": n << 62} for n in (-1, 1)]),
        ("many", "run", counted, [{"when": 5, "count": (1 << 32) - 1, "step": 1 << 30}]),
    ):
        write(tmp_path / f"{name}.ml", Schema.from_dict({"schema": kind, "fields": fields}), rows)
    done = run("confluo-replay", "sample", *words.split(), "-o", "tsv", cwd=tmp_path)
    first = (done.stderr.decode().splitlines() or [""])[0]
    assert (done.returncode, said in first) == (status, True), first
    assert "Traceback" not in done.stderr.decode()
