"""confluo-query on logs, streams and captures; results are compared with reference code in Python."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.cli import split_operands
from confluo_tools.errors import UsageError
from running import CAMPUS, DATA, environment, lines, run, shell


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("query") / "campus.ml"
    assert run("confluo-capture", "-r", CAMPUS, "-w", path, "--index", "src_ip,dst_port", "-q").returncode == 0
    return path


@pytest.fixture(scope="module")
def rows(log: Path) -> list[dict[str, Any]]:
    """All records, from NDJSON."""
    return [json.loads(line) for line in lines(run("confluo-query", log, "-J"))]


@pytest.fixture(scope="module")
def stream(log: Path) -> Path:
    path = log.parent / "campus.arrows"
    path.write_bytes(run("confluo-query", log).stdout)
    return path


def asked(where: Path, *words: str) -> list[dict[str, Any]]:
    done = run("confluo-query", where, *words, "-J")
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == b""
    return [json.loads(line) for line in lines(done)]


# -- operands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operands", "read", "expr", "inputs", "text"),
    [
        ([], [], None, [], ""),
        (["a"], [], None, ["a"], ""),
        (["a", "tcp", "and", "port 80"], [], None, ["a"], "tcp and port 80"),
        (["tcp"], ["a", "b"], None, ["a", "b"], "tcp"),
        (["a", "b"], [], "tcp", ["a", "b"], "tcp"),
        (["b"], ["a"], "tcp", ["a", "b"], "tcp"),
        (["-", "tcp"], [], None, ["-"], "tcp"),
        ([], [], "tcp", [], "tcp"),
        (["a", "./b", "c.d", "tcp", "or", "udp"], [], None, ["a", "./b", "c.d"], "tcp or udp"),
        (
            ["a", "gw1:/log", "u@gw2:/log", "s3://b/a/", "kafka://h/t"],
            [],
            None,
            ["a", "gw1:/log", "u@gw2:/log", "s3://b/a/", "kafka://h/t"],
            "",
        ),
        (["a", "eth_src==00:11:22:33:44:55"], [], None, ["a"], "eth_src==00:11:22:33:44:55"),
        (["a", "net", "fe80::/64"], [], None, ["a"], "net fe80::/64"),
        (["a", "absent.pcap"], [], None, ["a"], "absent.pcap"),
    ],
)
def test_which_operand_is_what(
    operands: list[str],
    read: list[str],
    expr: str | None,
    inputs: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c.d"):
        (tmp_path / name).touch()
    assert split_operands(operands, read, expr) == (inputs, text)


def test_the_same_question_in_each_form(log: Path) -> None:
    forms = [
        '"$1" tcp and port 80',
        '"$1" "tcp and port 80"',
        '-r "$1" tcp and port 80',
        '-e "tcp and port 80" "$1"',
        '- "tcp and port 80" < "$2"',
        '-e "tcp and port 80" < "$2"',
    ]
    stream = log.parent / "s"
    stream.write_bytes(run("confluo-query", log).stdout)
    counts = {shell(f"confluo-query --count {form}", log, stream).stdout for form in forms}
    assert len(counts) == 1
    assert int(counts.pop()) > 10


def test_a_lonely_expression_says_how_to_read_stdin() -> None:
    done = run("confluo-query", "tcp", stdin=b"")
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "confluo-query: tcp: No such file or directory; the first operand is the input, - for standard input\n"
    )
    done = run("confluo-query", CAMPUS, "tcp", str(DATA / "vlan.pcap.gz"))
    assert done.returncode == 2
    assert b"several inputs: -r" in done.stderr


def test_several_inputs_need_no_option() -> None:
    vlan = str(DATA / "vlan.pcap.gz")
    for words in (("tcp", "and", "port", "443"), ()):
        counts = [int(run("confluo-query", *paths, *words, "--count").stdout) for paths in ((CAMPUS,), (vlan,))]
        assert int(run("confluo-query", CAMPUS, vlan, *words, "--count").stdout) == sum(counts) > 0


# -- rows ------------------------------------------------------------------------------------------------------


QUESTIONS: list[tuple[str, Any]] = [
    ("tcp", lambda r: r["proto"] == "tcp"),
    ("dst_port == 443 && len > 100", lambda r: r["dst_port"] == 443 and r["len"] > 100),
    ("src_ip in 10.1.0.0/24", lambda r: (r["src_ip"] or "").startswith("10.1.0.")),
    ("src_ip == 10.1.0.12 || dst_port == 53", lambda r: r["src_ip"] == "10.1.0.12" or r["dst_port"] == 53),
    ("not (tcp or udp)", lambda r: r["proto"] not in ("tcp", "udp")),
    (
        "tcp_flags has syn and not tcp_flags has ack",
        lambda r: "syn" in (r["tcp_flags"] or "").split("|") and "ack" not in (r["tcp_flags"] or "").split("|"),
    ),
    ("host fd00:1::11", lambda r: "fd00:1::11" in (r["src_ip"], r["dst_ip"])),
]


@pytest.mark.parametrize(("text", "twin"), QUESTIONS, ids=[q[0] for q in QUESTIONS])
def test_rows_are_those_of_a_twin(text: str, twin: Any, log: Path, stream: Path, rows: list[dict[str, Any]]) -> None:
    expected = [r for r in rows if twin(r)]
    assert expected
    for where in (log, stream, CAMPUS):
        assert asked(where, text) == expected
    done = run("confluo-query", log, text, "--count")
    assert (done.returncode, int(done.stdout)) == (0, len(expected))


def test_fields_in_the_order_asked(log: Path, rows: list[dict[str, Any]]) -> None:
    found = asked(log, "-f", "len,src_ip, ts", "-c", "5")
    assert [list(r) for r in found] == [["len", "src_ip", "ts"]] * 5
    assert found == [{k: r[k] for k in ("len", "src_ip", "ts")} for r in rows[:5]]
    five = ["src_ip", "dst_ip", "src_port", "dst_port", "proto"]
    assert list(asked(log, "-f", "ts,flow", "-c", "1")[0]) == ["ts", *five]
    assert list(asked(log, "-f", "tcp_*", "-c", "1")[0]) == [k for k in rows[0] if k.startswith("tcp_")]
    assert list(asked(log, "-f", "-tcp_*,-eth_src", "-c", "1")[0]) == [
        k for k in rows[0] if not k.startswith("tcp_") and k != "eth_src"
    ]
    for bad, says in [
        ("srcip", "no field 'srcip'; did you mean 'src_ip'?"),
        ("", "no fields are named"),
        ("x*", "no field is like 'x*'"),
        ("ts,-ts", "no fields are left"),
    ]:
        done = run("confluo-query", log, "-f", bad)
        assert done.returncode == 2
        assert says in done.stderr.decode()


def test_fields_help_lists_types_and_units(log: Path) -> None:
    text = run("confluo-query", log, "-f", "help").stdout.decode()
    assert text.splitlines()[0].split() == ["FIELD", "TYPE", "UNIT", "MEANING"]
    assert "tcp_window" in text
    assert "flags(u16)" in text
    text = run("confluo-query", log, "--agg", "count, p99(len)", "--fields", "help").stdout.decode()
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["count", "p99_len"]


def test_limits(log: Path, rows: list[dict[str, Any]]) -> None:
    assert asked(log, "tcp", "-c", "3") == [r for r in rows if r["proto"] == "tcp"][:3]
    assert run("confluo-query", log, "-c", "0", "-J").returncode == 1
    assert run("confluo-query", log, "-c", "100000000", "--count").stdout == b"5735\n"
    assert run("confluo-query", log, "-c", "7", "--count").stdout == b"7\n"
    assert run("confluo-query", log, "-c", "-1").returncode == 2


def test_times(log: Path, rows: list[dict[str, Any]]) -> None:
    middle = rows[3000]["ts"]
    before = [r for r in rows if r["ts"] < middle]
    assert asked(log, "--until", middle) == before
    assert asked(log, "--since", middle) == [r for r in rows if r["ts"] >= middle]
    assert run("confluo-query", log, "--since", middle, "--until", middle).returncode == 2
    day = middle[:10]
    assert run("confluo-query", log, "--since", day, "--until", day, "--count").stdout == b"5735\n"  # the whole day
    assert run("confluo-query", log, "--since", "now", "--count").returncode in (0, 1)
    done = run("confluo-query", log, "--since", "soon")
    assert (done.returncode, b"'soon' is not a time" in done.stderr) == (2, True)
    for zone, hour in (("UTC", "00"), ("Etc/GMT-2", "02")):
        env = environment(TZ=zone)
        local = run("confluo-query", log, "--since", f"{day}T{hour}:00:00", "--local", "--count", env=env)
        assert local.stdout == b"5735\n"
        table = run("confluo-query", log, "--local", "-o", "table", "-W", "-c", "1", "-f", "ts", env=env)
        shown = int(table.stdout.decode().splitlines()[-1][11:13])
        assert shown == (int(rows[0]["ts"][11:13]) + int(hour)) % 24


def test_samples_are_whole_flows_and_nested(log: Path, rows: list[dict[str, Any]]) -> None:
    tenth, half = asked(log, "--sample", "1/10"), asked(log, "--sample", "1/2")
    assert 0 < len(tenth) < len(half) < len(rows)
    flows = {r["flow_hash"] for r in tenth}
    assert tenth == [r for r in rows if r["flow_hash"] in flows]
    assert flows <= {r["flow_hash"] for r in half}
    assert asked(CAMPUS, "--sample", "1/10") == tenth
    for bad in ("0", "1/0", "2/3", "x"):
        assert run("confluo-query", log, "--sample", bad).returncode == 2


def test_names_or_numbers(log: Path) -> None:
    named = lines(run("confluo-query", log, "tcp", "-c", "1", "-f", "proto,tcp_flags,eth_type", "-T"))
    plain = lines(
        run("confluo-query", log, "tcp", "-c", "1", "-f", "proto,tcp_flags,eth_type", "-T", "-n", "--no-header")
    )
    assert named[2].split("\t") == ["tcp", "syn|ece|cwr", "ip"]
    assert plain == ["6\t194\t2048"]


def test_several_inputs_are_one_stream(log: Path, stream: Path) -> None:
    done = run("confluo-query", "-r", log, "-r", stream, "-r", CAMPUS, "tcp", "--count")
    assert int(done.stdout) == 3 * 5167
    assert int(run("confluo-query", "-e", "", "--count", CAMPUS, DATA / "vlan.pcap.gz").stdout) > 5735
    done = run("confluo-query", "-r", "-", "-r", "-", stdin=b"")
    assert (done.returncode, b"only once" in done.stderr) == (2, True)
    other = stream.parent / "other.tsv"
    other.write_text("#fields\ta\n1\n")
    done = run("confluo-query", "-r", stream, "-r", other, "--count")
    assert done.returncode == 2
    assert f"{other}: holds records of kind 'record', {stream} of kind 'packet'" in done.stderr.decode()


# -- groups ----------------------------------------------------------------------------------------------------


def test_groups_are_those_of_a_counter(log: Path, stream: Path, rows: list[dict[str, Any]]) -> None:
    counts, sizes = Counter(), Counter()  # type: ignore[var-annotated]
    for r in rows:
        if r["proto"] == "tcp":
            counts[r["dst_port"]] += 1
            sizes[r["dst_port"]] += r["len"]
    for where in (log, stream, CAMPUS):
        found = asked(where, "tcp", "--agg", "count, sum(len)", "--by", "dst_port")
        assert {r["dst_port"]: (r["count"], r["sum_len"]) for r in found} == {p: (counts[p], sizes[p]) for p in counts}
    top = asked(log, "tcp", "--agg", "count", "--by", "dst_port", "--top", "3")
    assert [r["count"] for r in top] == sorted(counts.values(), reverse=True)[:3]
    many = asked(log, "tcp", "--by", "dst_port", "--having", "count > 100")
    assert {r["dst_port"] for r in many} == {p for p, n in counts.items() if n > 100}
    assert asked(log, "tcp", "--by", "dst_port", "-f", "count", "-c", "1")[0].keys() == {"count"}


def test_groups_in_every_format(log: Path) -> None:
    words = [log, "--agg", "count, avg(len), first(ts)", "--by", "src_ip/24, proto"]
    tsv = lines(run("confluo-query", *words))
    assert tsv[0] == "#fields\tsrc_ip\tproto\tcount\tavg_len\tfirst_ts"
    again = shell(
        'confluo-query "$1" --agg "count, avg(len), first(ts)" --by "src_ip/24, proto" -o stream | confluo-query - -T',
        log,
    )
    assert again.stdout.decode().splitlines() == tsv
    assert len(lines(run("confluo-query", *words, "-o", "csv"))) == len(tsv) - 1
    assert len(lines(run("confluo-query", *words, "-o", "table"))) == len(tsv)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--count", "--agg", "count"], "--count and --agg exclude each other"),
        (["--agg", "cont"], "cont"),
        (["--agg", "sum(src_ip)"], "needs numbers"),
        (["--by", "nope"], "nope"),
        (["--by", "proto", "--having", "x > 1"], "'x'"),
        (["--agg", "count", "--top", "0"], "--top"),
        (["dst_prt == 1"], "did you mean 'dst_port'"),
        (["(tcp"], "column"),
    ],
)
def test_questions_without_meaning(words: list[str], says: str, log: Path) -> None:
    done = run("confluo-query", log, *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr.decode()


# -- packets, plans, counts ------------------------------------------------------------------------------------


def test_packets_of_a_question_are_those_of_tcpdump(log: Path, tmp_path: Path) -> None:
    plain = tmp_path / "campus.pcap"
    plain.write_bytes(subprocess.run(["zcat", CAMPUS], capture_output=True, check=True).stdout)
    script = 'confluo-query "$1" "udp and port 53" -o pcap --source "$2" | tcpdump -nr - 2>/dev/null'
    ours = shell(script, log, CAMPUS)
    theirs = shell('tcpdump -nr "$1" udp and port 53 2>/dev/null', plain)
    assert ours.returncode == 0
    assert ours.stdout == theirs.stdout
    assert ours.stdout.count(b"\n") > 10
    assert shell(script.replace('--source "$2"', ""), log).stdout == theirs.stdout  # the log knows its capture
    done = run("confluo-query", "-", "-o", "pcap", stdin=run("confluo-query", log).stdout)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--source" in done.stderr


def test_a_plan_is_explained(log: Path, stream: Path) -> None:
    text = run("confluo-query", log, "src_ip == 10.1.0.12 and dst_port == 53", "--explain").stdout.decode()
    count = int(run("confluo-query", log, "src_ip == 10.1.0.12 and dst_port == 53", "--count").stdout)
    assert f"found    {count} in " in text
    assert "src_ip (1 blocks)" in text
    assert "dst_port (1 blocks)" in text
    steps = [line for line in text.splitlines() if line.startswith("  ")]
    assert {s.split()[0] for s in steps} == {"ip_version", "src_ip", "dst_port"}
    assert "%" in next(s for s in steps if "src_ip" in s)
    assert b"only a MultiLog" in run("confluo-query", stream, "tcp", "--explain").stdout
    assert b"found    5,167" in run("confluo-query", log, "tcp", "--agg", "count", "--explain").stdout


def test_statistics_go_to_stderr(log: Path) -> None:
    done = run("confluo-query", log, "tcp", "-c", "10", "-T", "--stats")
    assert len(lines(done)) == 12
    assert done.stderr.decode() == "confluo-query: 5735 records read, 5167 selected, 10 printed\n"


def test_damage_is_left_out_and_told(log: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "hurt.ml"
    shutil.copytree(log, copy)
    segment = next((copy / "lane-000").glob("seg-*.arrow"))
    data = bytearray(segment.read_bytes())
    for at in range(40_000, len(data) - 20_000, 4096):
        data[at] ^= 1
    segment.write_bytes(data)
    done = run("confluo-query", copy, "len > 0", "-J")
    assert done.returncode == 2
    assert done.stdout == b""
    assert str(segment) in done.stderr.decode()


def test_a_library_caller_gets_the_same_error() -> None:
    from confluo_tools.cli import PeriodOptions

    assert PeriodOptions({}).span(False) == (None, None)
    with pytest.raises(UsageError, match="is not after"):
        PeriodOptions({"since": "2026-11-20", "until": "2026-11-19"}).span(False)


def test_lanes_are_merged_by_time(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    from confluo_tools import multilog
    from confluo_tools.formats.pcap.files import open_captures

    with open_captures([str(CAMPUS)]) as captures:
        log = multilog.create(tmp_path / "two.ml", captures.schema)
        writers = [log.writer(), log.writer()]
        for i, block in enumerate(captures):
            for start in range(0, block.rows, 100):
                part = block.slice(start, min(100, block.rows - start))
                writers[(i + start // 100) % 2].append(part)
        for writer in writers:
            writer.close()
        log.close()
    two = tmp_path / "two.ml"
    assert len(json.loads(run("confluo-info", "-J", two).stdout)["lanes"]) == 2
    in_order = sorted(rows, key=lambda r: r["ts"])
    assert [r["ts"] for r in asked(two)] == [r["ts"] for r in in_order]
    assert sorted(map(str, asked(two))) == sorted(map(str, rows))
    some = asked(two, "udp", "-f", "dst_ip,len", "-c", "50")
    expected = [{k: r[k] for k in ("dst_ip", "len")} for r in in_order if r["proto"] == "udp"][:50]
    assert sorted(map(str, some)) == sorted(map(str, expected))
    assert asked(two, "--agg", "count, first(src_ip), last(len)", "--by", "proto") == asked(
        CAMPUS, "--agg", "count, first(src_ip), last(len)", "--by", "proto"
    )
    assert asked(two, "-c", "7", "-f", "ts") == [{"ts": r["ts"]} for r in in_order[:7]]
    stream = run("confluo-query", two, "tcp", "-f", "src_ip,dst_port")
    assert run("confluo-query", "-", "--count", stdin=stream.stdout).stdout == b"5167\n"


def test_selected_records_become_a_log(tmp_path: Path) -> None:
    log = tmp_path / "tcp.ml"
    assert run("confluo-query", CAMPUS, "tcp", "-f", "ts,len,proto", "-w", log).returncode == 0
    assert (
        run("confluo-query", log, "-T").stdout == run("confluo-query", CAMPUS, "tcp", "-f", "ts,len,proto", "-T").stdout
    )
    done = run("confluo-query", CAMPUS, "udp", "-f", "ts,len,proto", "-w", log)
    assert (done.returncode, done.stderr.count(b"--append adds to it")) == (2, 1)
    assert run("confluo-query", CAMPUS, "udp", "-f", "ts,len,proto", "-w", log, "--append").returncode == 0
    both = run("confluo-query", CAMPUS, "tcp or udp", "--count")
    assert run("confluo-query", log, "--count").stdout == both.stdout


def test_aggregates_become_a_log(tmp_path: Path) -> None:
    words = ["confluo-query", CAMPUS, "--agg", "count, sum(len)", "--by", "src_ip,1s"]
    assert run(*words, "-w", tmp_path / "sums.ml").returncode == 0
    assert sorted(lines(run("confluo-query", tmp_path / "sums.ml", "-T"))) == sorted(lines(run(*words, "-T")))
