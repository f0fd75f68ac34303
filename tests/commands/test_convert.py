"""confluo-convert: any input to any output, and nothing lost on the way."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars
import pyarrow.parquet as pq
import pytest

from confluo_tools import multilog
from confluo_tools.schema import builtin
from running import BIN, CAMPUS, DATA, environment, lines, popen, run, shell

KINDS = {
    "tsv": "x.tsv",
    "csv": "x.csv",
    "ndjson": "x.ndjson",
    "stream": "x.arrows",
    "arrow": "x.arrow",
    "parquet": "x.parquet",
    "multilog": "x.ml",
}


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The links capture (all link types, IPv6, VLANs) in every form."""
    folder = tmp_path_factory.mktemp("forms")
    found = {}
    for kind, name in KINDS.items():
        done = run("confluo-convert", DATA / "links.pcapng.gz", "-w", folder / name)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), kind
        found[kind] = folder / name
    return found


@pytest.fixture(scope="module")
def truth() -> bytes:
    return run("confluo-convert", DATA / "links.pcapng.gz", "-T").stdout


@pytest.fixture(scope="module")
def by_time() -> bytes:
    """The same rows as a MultiLog gives them; the times of the capture go back."""
    return run("confluo-convert", DATA / "links.pcapng.gz", "--sort-input", "-T").stdout


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_holds_the_same_rows(kind: str, forms: dict[str, Path], truth: bytes, by_time: bytes) -> None:
    assert sorted(by_time.splitlines()) == sorted(truth.splitlines())
    assert run("confluo-convert", forms[kind], "-T").stdout == (by_time if kind == "multilog" else truth)
    if kind != "multilog":
        assert run("confluo-convert", "-", "-T", stdin=forms[kind].read_bytes()).stdout == truth
        packed = gzip.compress(forms[kind].read_bytes())
        assert run("confluo-convert", "-", "-T", stdin=packed).stdout == truth
        assert run("confluo-convert", "-i", kind, forms[kind], "-T").stdout == truth


def test_others_read_what_we_write(forms: dict[str, Path]) -> None:
    rows = [json.loads(line) for line in forms["ndjson"].read_text().splitlines()]
    total = sum(r["len"] for r in rows)
    assert duckdb.sql(f"select count(*), sum(len) from '{forms['parquet']}'").fetchall() == [(len(rows), total)]
    assert duckdb.sql(f"select count(*), sum(len) from '{forms['csv']}'").fetchall() == [(len(rows), total)]
    assert duckdb.sql(f"select count(*), sum(len) from '{forms['ndjson']}'").fetchall() == [(len(rows), total)]
    for frame in (polars.read_ipc(forms["arrow"]), polars.read_ipc_stream(forms["stream"])):
        assert (frame.height, frame["len"].sum()) == (len(rows), total)
    assert pq.read_metadata(forms["parquet"]).metadata[b"confluo:kind"] == b"packet"


def test_forms_of_other_programs_are_read(forms: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "polars.arrows"
    polars.read_ipc_stream(forms["stream"]).select("ts", "dst_port", "len").write_ipc_stream(path)
    ours = run("confluo-convert", forms["stream"], "-T", "-f", "ts,dst_port,len").stdout
    assert run("confluo-convert", path, "-T").stdout == ours
    frame = tmp_path / "duck.parquet"
    duckdb.sql(f"copy (select ts, dst_port, len from '{forms['parquet']}') to '{frame}' (format parquet)")
    assert run("confluo-convert", frame, "-T").stdout == ours


def test_into_a_multilog_with_a_schema(tmp_path: Path) -> None:
    (tmp_path / "probe.yaml").write_text(
        "schema: probe\nfields:\n- {name: ts, type: time}\n- {name: src, type: ip}\n"
        "- {name: rtt, type: duration, unit: ns}\n- {name: state, type: enum, names: {1: up, 2: down}}\n"
        "- {name: site, type: bytes(8)}\n"
    )
    rows = [
        {"ts": "2026-11-20T10:00:00Z", "src": "10.0.0.1", "rtt": "250us", "state": "up", "site": "zrh"},
        {"ts": "2026-11-20T10:00:01Z", "src": "2001:db8::1", "rtt": 300000, "state": "down", "extra": 1},
    ]
    text = "".join(json.dumps(r) + "\n" for r in rows).encode()
    words = ["confluo-convert", "-", "--schema", tmp_path / "probe.yaml", "-w", tmp_path / "probe.ml"]
    done = run(*words, stdin=text)
    assert done.returncode == 2  # one field had to be left out
    assert b"field 'extra' is not in the schema" in done.stderr
    assert run(*words, stdin=text).returncode == 2  # exists
    assert run(*words, "--append", stdin=text.replace(b', "extra": 1', b"")).returncode == 0
    found = [json.loads(line) for line in lines(run("confluo-query", tmp_path / "probe.ml", "state == down", "-J"))]
    assert (
        found
        == [
            {"ts": "2026-11-20T10:00:01.000000000Z", "src": "2001:db8::1", "rtt": 300000, "state": "down", "site": None}
        ]
        * 2
    )
    info = json.loads(run("confluo-info", "-J", tmp_path / "probe.ml").stdout)
    assert (info["schema"], info["rows"]) == ("probe", 4)
    assert ["--append" in h["command"] for h in info["history"]] == [False, True]


def test_a_schema_that_does_not_fit(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    cases = [
        ("fields: 3", "is not a schema"),
        ("schema: x\nfields:\n- {name: a}", "needs a name and a type"),
        ("schema: x\nfields:\n- {name: a, type: u99}", "field 'a': unknown type"),
        ("a: [", "cannot be read"),
    ]
    for text, says in cases:
        bad.write_text(text)
        done = run("confluo-convert", CAMPUS, "--schema", bad)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode().startswith(f"confluo-convert: {bad}: ")
        assert says in done.stderr.decode()
    bad.write_text("schema: x\nfields:\n- {name: len, type: f64}\n")
    done = run("confluo-convert", CAMPUS, "--schema", bad, "-T")
    assert (done.returncode, b"column len has another type" in done.stderr) == (2, True)


def test_a_schema_chooses_and_adds_columns(tmp_path: Path) -> None:
    some = tmp_path / "some.yaml"
    some.write_text("schema: packet\nfields:\n- {name: len, type: u32}\n- {name: mine, type: u8}\n")
    assert lines(run("confluo-convert", CAMPUS, "--schema", some, "-T", "-c", "1")) == [
        "#fields\tlen\tmine",
        "#types\tu32\tu8",
        "150\t0",
    ]
    head = lines(run("confluo-convert", CAMPUS, "--schema", "packet", "-T", "-c", "1"))[0]
    assert head.split("\t")[1:] == [f.name for f in builtin("packet").fields]


def test_where_a_multilog_may_not_go(tmp_path: Path) -> None:
    (tmp_path / "file.ml").write_text("precious")
    (tmp_path / "folder.ml").mkdir()
    (tmp_path / "folder.ml" / "another file").write_text("too")
    for name in ("file.ml", "folder.ml"):
        done = run("confluo-convert", CAMPUS, "-w", tmp_path / name, "--append", "--force")
        assert (done.returncode, done.stderr.decode()) == (
            2,
            f"confluo-convert: {tmp_path / name}: exists; choose another name\n",
        )
    assert (tmp_path / "file.ml").read_text() == "precious"
    done = run("confluo-convert", CAMPUS, "-o", "multilog")
    assert (done.returncode, b"name it with -w LOG" in done.stderr) == (2, True)
    done = run("confluo-convert", CAMPUS, "-o", "multilog", "-w", tmp_path / "any name")
    assert done.returncode == 0
    assert run("confluo-query", tmp_path / "any name", "--count").stdout == b"5735\n"


def test_a_name_says_what_is_written(tmp_path: Path) -> None:
    """A MultiLog, unless the suffix or -o says that it is a file; a device or a FIFO is not a folder."""
    for name, kind in {"new": "multilog", "new.ml": "multilog", "report.txt": "tsv", "x.ndjson": "ndjson"}.items():
        assert run("confluo-convert", CAMPUS, "-c", "3", "-w", tmp_path / name).returncode == 0
        assert (tmp_path / name).is_dir() == (kind == "multilog")
        assert run("confluo-query", tmp_path / name, "--count").stdout == b"3\n"
    for command in ("convert", "capture"):
        done = run(f"confluo-{command}", *(["-r"] if command == "capture" else []), CAMPUS, "-w", "/dev/null")
        assert (done.returncode, done.stderr) == (0, b"")
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    assert run("confluo-convert", CAMPUS, "-c", "3", "-w", tmp_path / "pipe").returncode == 0
    out = reader.communicate(timeout=30)[0]
    assert run("confluo-query", "-", "--count", input=out, stdin=None).stdout == b"3\n"
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_import_keeps_what_it_has(number: int, tmp_path: Path) -> None:
    child = popen(
        [BIN / "confluo-convert", "-i", "ndjson", "-", "-w", tmp_path / "x.ml"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert child.stdin is not None
    child.stdin.write(b'{"len":1}\n' * 1000)
    child.stdin.flush()
    for _ in range(2000):
        if (tmp_path / "x.ml").exists() and run("confluo-query", tmp_path / "x.ml", "--count").stdout == b"1000\n":
            break
        time.sleep(0.05)
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (128 + number, b"")
    assert run("confluo-info", "--verify", tmp_path / "x.ml").returncode == 0
    assert run("confluo-query", tmp_path / "x.ml", "--count").stdout == b"1000\n"


def test_limits_and_statistics() -> None:
    done = run("confluo-convert", CAMPUS, "-T", "-f", "len", "-c", "3", "--stats")
    assert len(lines(done)) == 5
    assert done.stderr.startswith(b"confluo-convert: ")
    assert done.stderr.endswith(b"records read, 3 written\n")
    assert run("confluo-convert", CAMPUS, "-J", "-c", "0").returncode == 1


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    line = b'{"len":1,"dst_port":80,"src_ip":"10.0.0.1"}\n'
    peaks = []
    for n in (50_000, 1_000_000):
        path = tmp_path / str(n)
        path.write_bytes(line * n)
        done = shell(
            'confluo-convert - -o csv < "$1" > /dev/null & pid=$!; peak=0; '
            "while kill -0 $pid 2>/dev/null; do "
            "now=$(awk '/VmHWM/{print $2}' /proc/$pid/status 2>/dev/null); "
            '[ -n "$now" ] && peak=$now; sleep 0.02; done; wait $pid; echo $peak',
            path,
        )
        assert done.returncode == 0
        peaks.append(int(done.stdout))
        os.unlink(path)
    assert peaks[1] < peaks[0] + 30_000  # KiB; the input grew by 44 MB


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_readable_columns_for_others_and_back(
    kind: str, forms: dict[str, Path], by_time: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"x.{kind}"
    assert run("confluo-convert", forms["multilog"], "--readable", "-w", path).returncode == 0
    assert run("confluo-convert", path, "-T").stdout == by_time
    rows = [json.loads(line) for line in forms["ndjson"].read_text().splitlines()]
    if kind == "parquet":
        for column in ("src_ip", "eth_dst", "proto", "tcp_flags"):
            found = duckdb.sql(f"select {column}, count(*) from '{path}' group by 1").fetchall()
            assert dict(found) == {v: sum(r[column] == v for r in rows) for v in {r[column] for r in rows}}


@pytest.mark.skipif(not shutil.which("mergecap"), reason="needs mergecap")
def test_several_captures_are_their_own_sources(tmp_path: Path) -> None:
    """Files one after the other, as mergecap -a puts them."""
    from confluo_tools.core.packets.pcap import Capture

    inputs = [DATA / name for name in ("vlan.pcap.gz", "links.pcapng.gz", "vlan.pcap.gz", "loss.pcap.gz")]
    subprocess.run(["mergecap", "-a", "-w", tmp_path / "theirs.pcapng", *inputs], check=True)
    done = run("confluo-convert", *inputs, "-w", tmp_path / "ours.pcapng")
    assert (done.returncode, done.stderr) == (0, b"")
    packets = [
        [(ts, link, wire, data) for ts, _, link, wire, _, data in Capture((tmp_path / name).read_bytes()).frames_of()]
        for name in ("ours.pcapng", "theirs.pcapng")
    ]
    assert len(packets[0]) > 1000
    assert packets[0] == packets[1]
    (tmp_path / "x.tsv").write_bytes(run("confluo-convert", inputs[0], "-T").stdout)
    done = run("confluo-convert", inputs[0], tmp_path / "x.tsv", "-o", "pcap")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"give the capture with --source" in done.stderr


def test_types_of_columns_that_other_programs_wrote(tmp_path: Path) -> None:
    """Lists of any length, and texts that are addresses, get types; Polars and DuckDB wrote them."""
    day = datetime(2026, 1, 1, tzinfo=UTC)
    rows = {
        "ts": [day, day + timedelta(seconds=1)],
        "hops": [[1, 2, 3], []],
        "rates": [[1.5], [2.5, 3.5]],
        "times": [[day], None],
        "client": ["10.0.0.1", "2001:db8::1"],
        "station": ["00:11:22:33:44:55", None],
        "code": ["zz:zz:zz:zz:zz:zz", "10.0.0.1"],
    }
    frame = polars.DataFrame(rows)
    frame.write_parquet(tmp_path / "polars.parquet")
    frame.write_ipc(tmp_path / "polars.arrow")
    duckdb.sql(f"copy (from '{tmp_path}/polars.parquet') to '{tmp_path}/duckdb.parquet'")
    for name in ("polars.parquet", "polars.arrow", "duckdb.parquet"):
        assert run("confluo-convert", "-q", tmp_path / name, "-w", tmp_path / f"{name}.ml").returncode == 0
        types = {f.name: f.type.text for f in multilog.open(tmp_path / f"{name}.ml").schema.fields}
        assert types.pop("code").startswith("text")
        assert types == {
            "ts": "time", "hops": "list(i64, 8)", "rates": "list(f64, 8)", "times": "list(time, 8)", "client": "ip",
            "station": "mac",
        }  # fmt: skip
        read = [json.loads(line) for line in run("confluo-query", tmp_path / f"{name}.ml", "-J").stdout.splitlines()]
        shown = "2026-01-01T00:00:00.000000000Z"
        assert [row["hops"] for row in read] == rows["hops"]
        assert [row["rates"] for row in read] == rows["rates"]
        assert [row["times"] for row in read] == [[shown], []]
        for field in ("client", "station", "code"):
            assert [row[field] for row in read] == rows[field]
