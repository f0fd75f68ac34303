"""confluo-pingmesh sla: rows against a twin and DuckDB, alarms, services, following, and what is refused."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from math import isnan
from pathlib import Path
from typing import Any

import duckdb
import pytest

from confluo_tools import multilog
from confluo_tools.cli import RecordOutput
from confluo_tools.expr import compile
from confluo_tools.pingmesh.analysis.follow import WindowFollower
from confluo_tools.pingmesh.analysis.probe_tally import WindowTally
from probe_records import Simulated, fault
from remote_lab import env
from running import BIN, environment, popen, run
from twin_probe_tally import SCHEMA, block, probe, quantile, twin

MINUTE = 60_000_000_000


def stream(path: Path, *parts: list[dict[str, Any]]) -> Path:
    with RecordOutput(SCHEMA, "stream", path=str(path)) as out:
        for rows in parts:
            out.write(block(rows))
    return path


def sla(*words: Any, status: int = 0, stdin: Any = None) -> list[dict[str, Any]]:
    """What the command says, as dicts."""
    done = run("confluo-pingmesh", "sla", *map(str, words), "-J", stdin=stdin)
    assert done.returncode == status, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(*words: Any) -> str:
    done = run("confluo-pingmesh", "sla", *map(str, words))
    assert (done.returncode, done.stdout) == (2, b"")
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("confluo-pingmesh sla: ")
    return lines[0].removeprefix("confluo-pingmesh sla: ")


def rows_of(seed: int, n: int = 3000) -> list[dict[str, Any]]:
    r = random.Random(seed)
    rows = []
    for i in range(n):
        a, b = r.randrange(4), r.randrange(4)
        row = probe(
            ts=i * MINUTE // 100,
            src=f"s{a}",
            dst=f"s{b}",
            src_pod=f"p{a // 2}",
            dst_pod=f"p{b // 2}",
            rtt=int(r.lognormvariate(13, 1)),
            elapsed=int(r.lognormvariate(15, 0.3)),
            level=r.choice([1, 2, 2, 3, 0]),
            outcome=r.choice([1] * 30 + [2, 3, 4, 5, 6, 7]),
        )
        if row["outcome"] != 1:
            row["rtt"] = 0
        elif r.random() < 0.02:
            row |= {"rtt": 0, "retries": 1, "hint": r.randrange(3), "notes": r.choice([0, 0, 4])}
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("words", "by"),
    [
        (("--by", "pod"), ("src_pod",)),
        (("--by", "pod", "--as", "target"), ("dst_pod",)),
        (("--by", "pod_pair"), ("src_pod", "dst_pod")),
        (("--by", "server"), ("src",)),
        (("--by", "all"), ()),
        (("--by", "level,src"), ("level", "src")),
        (("--by", "dc_pair"), ("src_dc", "dst_dc")),
    ],
)
def test_rows_are_the_twins(tmp_path: Path, words: tuple[str, ...], by: tuple[str, ...]) -> None:
    rows = rows_of(1)
    path = stream(tmp_path / "p.arrows", rows[:1000], rows[1000:])
    wan = bool({"level", "src_dc"} & set(by))  # else, probes between data centres are left out
    expected = twin([r for r in rows if wan or r["level"] != 3], by, 10 * MINUTE)
    levels = {0: None, 1: "pod", 2: "dc", 3: "wan"}
    found = sla(path, *words, "--window", "10m")
    assert len(found) == len(expected)
    names = [words[1] if len(by) == 1 else n for n in by]
    for row in found:
        key = [row[n] for n in names]
        key = [
            next(code for code, name in levels.items() if name == v) if n == "level" else v
            for n, v in zip(by, key, strict=True)
        ]
        start = int(row["ts"][11:13]) * 60 + int(row["ts"][14:16])
        cell = expected[start * MINUTE, tuple(v or "" if v is None else v for v in key)]
        for name in ("ok", "dropped", "overflow", "timeout", "refused", "unreachable", "reset", "garbled", "local"):
            assert row[name] == cell.get(name, 0)
        assert row["drop_rate"] == pytest.approx(cell.get("dropped", 0) / cell["ok"], rel=1e-3)
        near = 0 if row["samples"] <= 512 else 1 / 200
        assert row["p99"] == pytest.approx(quantile(cell["rtt"], 990_000), rel=near)
        assert row["seen50"] == pytest.approx(quantile(cell["seen"], 500_000), rel=near)


def test_like_duckdb(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    reader = Simulated(fault("spine_drops", "dc1", 0.05), seed=5, span=3 * MINUTE)
    with RecordOutput(reader.schema, "parquet", path=str(path), readable=False) as out:
        for part in reader.blocks():
            out.write(part)
    with duckdb.connect() as db:
        rows = db.execute(
            "select src_podset, dst_podset, count(*) filter (outcome = 1), "
            "count(*) filter (outcome = 1 and retries > 0), count(*) filter (outcome = 2), "
            "quantile_disc(rtt, 0.5) filter (outcome = 1 and retries = 0), "
            "quantile_disc(rtt, 0.99) filter (outcome = 1 and retries = 0) "
            f"from '{path}' where kind < 16 group by 1, 2 order by 1, 2"
        ).fetchall()
    found = sla(path, "--by", "podset_pair")
    assert len(found) == len(rows) == 16

    def text(v: Any) -> str:
        return (v if isinstance(v, str) else bytes(v).decode()).rstrip("\0")

    for row, (a, b, ok, dropped, timeout, p50, p99) in zip(found, rows, strict=True):
        assert (row["src_podset"], row["dst_podset"]) == (text(a), text(b))
        assert (row["ok"], row["dropped"], row["timeout"]) == (ok, dropped, timeout)
        assert row["p50"] == pytest.approx(p50, rel=1 / 200)
        assert row["p99"] == pytest.approx(p99, rel=1 / 200)
    assert sum(row["dropped"] for row in found) > 50


def test_not_enough_probes_is_no_alarm(tmp_path: Path) -> None:
    """Acceptance check: 60 probes and 1 drop."""
    rows = [probe(ts=i * 10**10, src="a", rtt=10**5) for i in range(59)]
    rows.append(probe(ts=59 * 10**10, src="a", rtt=0, retries=1))
    path = stream(tmp_path / "p.arrows", rows)
    [row] = sla(path, "--by", "server", "--window", "10m")
    assert (row["ok"], row["dropped"], row["state"], row["needed"]) == (60, 1, "not_enough_probes", 3)
    assert row["drop_rate"] == pytest.approx(1 / 60, rel=1e-3)
    assert row["drop_low"] < 1e-2 < row["drop_high"]
    assert "drop" in row["why"]
    assert sla(path, "--by", "server", "--window", "10m", "--alerts", status=1) == []


def test_an_alarm_begins_and_ends(tmp_path: Path) -> None:
    bad = fault("podset_failure", "ps02", start=20 * MINUTE, length=20 * MINUTE)
    reader = Simulated(bad, seed=2, grid=(1, 3, 2, 4), span=80 * MINUTE)
    path = tmp_path / "p.arrows"
    with RecordOutput(reader.schema, "stream", path=str(path)) as out:
        for part in reader.blocks():
            out.write(part)
    events = sla(path, "--by", "podset_pair", "--window", "10m", "--alerts", "--rule", "p99 > 5ms")
    found = [(e["ts"][11:16], e["event"], e["key"], e["lasted"] // MINUTE) for e in events]
    pairs = sorted(
        f"src_podset={a} dst_podset={b}"
        for a in ("ps01", "ps02", "ps03")
        for b in ("ps01", "ps02", "ps03")
        if "ps02" in (a, b)
    )
    # bad in [20, 40): fires at the end of the first bad window, ends after two calm ones
    assert found == [("00:30", "fire", k, 0) for k in pairs] + [("01:00", "clear", k, 30) for k in pairs]
    assert {e["condition"] for e in events} == {"p99 > 5ms"}
    assert all(e["value"] > 5_000_000 and e["values"][0] >= e["values"][2] for e in events if e["event"] == "fire")
    # alarms are records of the kind that monitors write
    done = run("confluo-pingmesh", "sla", path, "--window", "10m", "--alerts", "-o", "stream")
    listed = run("confluo-query", "-", "event == fire", "--count", stdin=done.stdout)
    assert listed.stdout == b"3\n"


def test_who_falls_silent_is_told_of(tmp_path: Path) -> None:
    def at(minute: int, *servers: str) -> list[dict[str, Any]]:
        return [probe(ts=minute * MINUTE + i, src=name) for name in servers for i in range(3)]

    parts = [at(0, "a", "b"), at(1, "a"), at(2, "a", "b"), *[at(m, "a") for m in range(3, 12)], at(12, "a", "b")]
    path = stream(tmp_path / "p.arrows", *parts)
    rows = sla(path, "--by", "server", "--window", "1m")
    silent = [int(r["ts"][14:16]) for r in rows if r["server"] == "b" and r["state"] == "no_probes"]
    assert silent == [1, 3, 4, 5, 6, 7, 8]  # then it is forgotten
    assert [r["probes"] for r in rows if r["server"] == "a"] == [3] * 13
    events = sla(path, "--by", "server", "--window", "1m", "--alerts", "--rule", "silent", "--calm", "1")
    assert {e["key"] for e in events} == {"server=b"}
    found = [(e["ts"][14:16], e["event"]) for e in events]
    assert found == [("02", "fire"), ("03", "clear"), ("04", "fire"), ("13", "clear")]


def test_groups_of_any_field(tmp_path: Path) -> None:
    rows = [probe(ip_version=4, src_ip=0x0A000001, dscp=46), probe(ip_version=6, src_ip6=bytes(15) + b"\1", rate=0.5)]
    path = stream(tmp_path / "p.arrows", [*rows, probe(src_pod="é", kind=5)])

    def keys(by: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in by.split(",")) for row in sla(path, "--by", by)]

    assert keys("src_ip") == [(None,), ("10.0.0.1",), ("::1",)]
    assert keys("kind,dscp") == [("tcp", 0), ("tcp", 46), ("udp", 0)]
    assert keys("rate,src_pod") == [(0.0, "a"), (0.0, "é"), (0.5, "a")]


def test_nobody_answers(tmp_path: Path) -> None:
    rows = [probe(dst="x", outcome=2, rtt=0)] * 5 + [probe(dst="y")] * 5
    path = stream(tmp_path / "p.arrows", rows)
    found = sla(path, "--by", "server", "--as", "target")
    assert [(r["server"], r["failed"], r["state"]) for r in found] == [
        ("x", 5, "no_answers"),
        ("y", 0, "not_enough_probes"),
    ]
    [row, _] = sla(path, "--by", "server", "--as", "target", "--rule", "failed > 1%")
    assert (row["state"], row["why"]) == ("bad", "failed")


def test_services_are_the_probes_of_their_servers(tmp_path: Path) -> None:
    topology = tmp_path / "fleet.yaml"
    topology.write_text(
        "dcs:\n  d:\n    ps:\n      p0: {s0: 10.0.0.1, s1: 10.0.0.2}\n      p1: {s2: 10.0.1.1, s3: 10.0.1.2}\n"
        "services: {web: [s0, s2], db: [s2, s3]}\n"
    )
    rows = rows_of(3)
    rows += [probe(ts=5, src="", src_ip=0x0A000001, ip_version=4, rtt=77)]  # web by its address
    path = stream(tmp_path / "p.arrows", rows)
    found = {row["service"]: row for row in sla(path, "--by", "service", "--topology", topology)}
    assert sorted(found) == ["db", "web"]
    for name, servers in (("web", ("s0", "s2", "")), ("db", ("s2", "s3"))):
        some = [r for r in rows if r["src"] in servers and r.get("level") != 3]
        cell = twin(some, ())[0, ()]
        assert found[name]["ok"] == cell["ok"]
        assert found[name]["dropped"] == cell.get("dropped", 0)
        assert found[name]["p50"] == pytest.approx(quantile(cell["rtt"], 500_000), rel=1 / 200)
    assert "--by service: needs --topology FILE" in refused(path, "--by", "service")


def test_the_worst_rows(tmp_path: Path) -> None:
    rows = [probe(src=f"s{i}", rtt=(i + 1) * 1000) for i in range(9) for _ in range(100)]
    rows += [probe(src="s3", rtt=0, retries=1) for _ in range(20)] + [probe(src="few", rtt=0, retries=1)]
    rows += [probe(src="s5", rtt=0, outcome=2) for _ in range(50)]
    path = stream(tmp_path / "p.arrows", rows)
    assert [r["server"] for r in sla(path, "--by", "server", "--top", 3, "--metric", "p99")] == ["s8", "s7", "s6"]
    assert sla(path, "--by", "server", "--top", 1)[0]["server"] == "few"  # 1 of 1 is at least 20 %
    assert sla(path, "--by", "server", "--top", 1, "--metric", "failed")[0]["server"] == "s5"
    none = [probe(src="x", outcome=6, rtt=0)]
    [row] = sla(stream(tmp_path / "q.arrows", none), "--by", "server", "--top", 5)
    assert (row["local"], row["probes"], row["state"]) == (1, 0, "no_probes")
    assert row["drop_rate"] is None or isnan(row["drop_rate"])


def test_signatures_of_others(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    times = ["240us", "1.01s", "2.05s", "3.03s", "7.1s", "9.1s"]
    lines = [f"2026-01-01T00:00:{i:02}Z,a,b,{t}\n" for i, t in enumerate(times)]
    path.write_text("".join(["ts,src,dst,elapsed\n", *lines]))
    found = {}
    for name in ("linux", "linux-classic", "windows"):
        [row] = sla(path, "--by", "server", "--signature", name)
        found[name] = (row["ok"], row["dropped"], row["slow"], row["samples"])
    assert found == {"linux": (6, 4, 1, 2), "linux-classic": (6, 3, 2, 3), "windows": (6, 2, 3, 4)}
    done = run("confluo-pingmesh", "sla", path)
    assert done.returncode == 2
    assert b"other.csv: 6 records have no kind or outcome; " in done.stderr


def test_ranges_expressions_and_several_inputs(tmp_path: Path) -> None:
    rows = rows_of(4, 600)
    one, two = stream(tmp_path / "1.arrows", rows[:300]), stream(tmp_path / "2.arrows", rows[300:])
    log = tmp_path / "p.ml"
    with multilog.create(str(log), SCHEMA) as made, made.writer() as writer:
        writer.append(block(rows))
    both = sla(one, two, "--by", "server")
    assert both == sla(log, "--by", "server") == sla("-", "--by", "server", stdin=one.read_bytes() + two.read_bytes())
    some = sla(log, "--by", "all", "-e", "src == s1", "--since", "@60", "--until", "@240")
    expected = twin([r for r in rows if r["src"] == "s1" and r["level"] != 3 and 60 <= r["ts"] / 1e9 < 240], ())
    assert some[0]["ok"] == expected[0, ()]["ok"]


def test_logs_on_other_hosts(tmp_path: Path) -> None:
    rows = rows_of(6)
    late = [probe(ts=i, src="x", dst="h", rtt=0, retries=1, elapsed=10**9) for i in range(5)]
    rows += [*late, {"ts": 10**9, "kind": 16, "elapsed": 10**9, "overflows": 3, "src": "h"}]
    for name, some in (("all", rows), ("a", rows[::2]), ("b", rows[1::2])):
        with multilog.create(str(tmp_path / f"{name}.ml"), SCHEMA) as log, log.writer() as writer:
            writer.append(block(some))
    words = ["--by", "server", "-e", "src != s0", "--until", "@1500", "-J"]
    here = run("confluo-pingmesh", "sla", tmp_path / "all.ml", *words)
    there = run("confluo-pingmesh", "sla", f"sw1:{tmp_path}/a.ml", f"sw2:{tmp_path}/b.ml", *words, env=env(tmp_path))
    assert there.stdout == here.stdout
    assert (there.returncode, there.stderr) == (0, b"")
    [row] = [json.loads(line) for line in here.stdout.splitlines() if b'"x"' in line]
    assert (row["dropped"], row["overflow"]) == (2, 3)
    ask = ["--servers", "s1,x", "-J"]
    here = run("confluo-pingmesh", "verdict", tmp_path / "all.ml", *ask)
    there = run("confluo-pingmesh", "verdict", f"sw1:{tmp_path}/a.ml", f"sw2:{tmp_path}/b.ml", *ask, env=env(tmp_path))
    assert there.stdout == here.stdout
    assert b"not_enough_probes" in here.stdout


def test_windows_are_told_when_they_are_over(tmp_path: Path) -> None:
    """A log that grows; the last window only after a signal."""
    path = tmp_path / "p.ml"
    words = ["sla", str(path), "--by", "all", "--window", "1m", "--follow", "--lateness", "1s", "-J", "-l"]
    with multilog.create(str(path), SCHEMA) as log, log.writer() as writer:
        follower = popen([BIN / "confluo-pingmesh", *words], env=environment(), stdout=subprocess.PIPE)
        try:
            assert follower.stdout is not None
            writer.append(block([probe(ts=MINUTE + 1), probe(ts=MINUTE + 2), probe(ts=2 * MINUTE)]))
            writer.append(block([probe(ts=3 * MINUTE, outcome=2, rtt=0)]))
            writer.flush()
            first = [json.loads(follower.stdout.readline()) for _ in range(2)]
            assert [(r["ts"][14:16], r["ok"]) for r in first] == [("01", 2), ("02", 1)]
            assert json.loads(follower.stdout.readline())["failed"] == 1  # by the clock: it is long past
            writer.append(block([probe(ts=time.time_ns())]))
            writer.flush()
            time.sleep(0.5)
            follower.send_signal(signal.SIGTERM)
            assert json.loads(follower.stdout.readline())["ok"] == 1
            assert follower.wait(20) == 128 + signal.SIGTERM
        finally:
            follower.kill()
            follower.wait()
            assert follower.stdout is not None
            follower.stdout.close()


def test_a_pipe_that_is_followed_gives_the_same(tmp_path: Path) -> None:
    reader = Simulated(fault("spine_drops", "dc1", 0.6, start=2 * MINUTE), seed=8, grid=(1, 2, 2, 4), span=5 * MINUTE)
    path = tmp_path / "p.arrows"
    with RecordOutput(reader.schema, "stream", path=str(path)) as out:
        for part in reader.blocks():
            out.write(part)
    words = ["-", "--window", "1m", "--by", "podset"]
    rows = sla(*words, stdin=path.read_bytes())
    assert sla(*words, "--follow", stdin=path.read_bytes()) == rows
    assert len(rows) == 10
    events = sla(*words, "--alerts", "--rule", "drop > 1%", stdin=path.read_bytes())
    assert sla(*words, "--alerts", "--rule", "drop > 1%", "--follow", stdin=path.read_bytes()) == events != []


def test_rows_and_alarms_in_logs_of_their_own(tmp_path: Path) -> None:
    path = stream(tmp_path / "p.arrows", rows_of(7))
    log = tmp_path / "sla.ml"
    words = ["sla", str(path), "--by", "server", "--window", "10m"]
    assert run("confluo-pingmesh", *words, "-w", log).returncode == 0
    again = run("confluo-pingmesh", *words, "-w", log)
    assert again.stderr.decode() == f"confluo-pingmesh sla: {log}: exists; --append adds to it\n"
    assert run("confluo-pingmesh", *words, "-w", log, "--append").returncode == 0
    once = len(sla(*words[1:]))
    assert run("confluo-query", log, "--count").stdout == b"%d\n" % (2 * once)
    rows = run("confluo-query", log, "server == s1", "-f", "ok,p99,state", "-J", "-c", "1").stdout
    first = next(r for r in sla(*words[1:]) if r["server"] == "s1")
    assert json.loads(rows) == {name: first[name] for name in ("ok", "p99", "state")}
    alarms = tmp_path / "alarms.ml"
    run("confluo-pingmesh", *words, "--alerts", "--rule", "p50 > 1us", "-w", alarms)
    assert run("confluo-query", alarms, "event == fire and key == 'server=s1'", "--count").stdout == b"1\n"
    assert "--append is for a MultiLog" in refused(path, "--append")
    assert "a MultiLog is a folder" in refused(path, "-o", "multilog")


def test_late_probes_are_counted_apart() -> None:
    mesh = WindowTally(SCHEMA, (), window=MINUTE)
    done: list[tuple[int, int]] = []

    def over(window: int) -> None:
        [(_, cell)] = mesh.cells(window)
        done.append((window // MINUTE, cell.ok))

    follower = WindowFollower(mesh, MINUTE, over, lambda: None)
    every = compile("", SCHEMA).program.select
    for times in ([1, 2], [3], [2, 1], [9], [4, 3], [10]):
        follower.add(block([probe(ts=t * MINUTE) for t in times]), every)
    # at 3, window 1 is over and a minute past; the 1 that comes then is late, at 9 all before 8 are over
    assert (done, follower.late) == ([(1, 1), (2, 2), (3, 1)], 3)
    follower.finish()
    assert done[3:] == [(9, 1), (10, 1)]


def test_refusals(tmp_path: Path) -> None:
    path = stream(tmp_path / "p.arrows", [probe()])
    assert refused(path, "--by", "rack") == (
        "--by: unknown scope 'rack'; all, server, pod, podset, dc, service, X_pair, or fields of the records"
    )
    assert refused(path, "--by", "src,ts") == "--by ts: is the time; --window TIME groups by it"
    assert refused(path, "--by", "src,src") == "--by: names a field twice"
    assert refused(path, "--as", "both") == "--as: not 'both'; source or target"
    assert "--rule: invalid rule 'p99'" in refused(path, "--rule", "p99")
    assert "--rule: unknown metric 'p98'" in refused(path, "--rule", "p98 > 3ms")
    assert "'5ms' is not a rate" in refused(path, "--rule", "drop > 5ms")
    assert "invalid time '1%'" in refused(path, "--rule", "p99 > 1%")
    assert "the value that ends an alert exceeds the threshold" in refused(path, "--rule", "p99 > 1ms clear 2ms")
    assert "the background must be above 0 and at most" in refused(path, "--background", "1%")
    assert "more than four rules" in refused(path, *[w for i in range(5) for w in ("--rule", f"p99 > {i + 1}ms")])
    assert "--signature: not 'bsd'" in refused(path, "--signature", "bsd")
    assert "--metric: not 'p98'" in refused(path, "--metric", "p98")
    assert "--window: '0s' is too short; more than 0" in refused(path, "--window", "0s")
    assert "--follow: needs --window TIME" in refused(path, "--follow")
    assert "--alerts and --top exclude" in refused(path, "--alerts", "--top", "3")
    assert "the snapshot names the logs" in refused(path, "--at", "x.yaml")
    assert "'2' is not a rate" in refused(path, "--false-alarm", "2")
    other = run("confluo-vote", "simulate", "-o", "stream").stdout
    done = run("confluo-pingmesh", "sla", "-", stdin=other)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"holds records of kind 'path', not probes; confluo-pingmesh probe, agent and simulate" in done.stderr
    two = tmp_path / "x.ml", tmp_path / "y.ml"
    for one in two:
        multilog.create(str(one), SCHEMA).close()
    assert "--follow watches one MultiLog" in refused(*two, "--follow", "--window", "1m")
    assert sla(two[0], status=1) == []


def test_its_fields() -> None:
    done = run("confluo-pingmesh", "sla", "--by", "dc_pair", "-f", "help")
    assert b"src_dc  " in done.stdout
    assert b"not_enough_probes" in done.stdout
    assert b"trigger" in run("confluo-pingmesh", "sla", "--alerts", "-f", "help").stdout
