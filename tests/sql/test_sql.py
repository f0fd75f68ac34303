"""SQL over logs, next to DuckDB over Parquet of the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import confluo_tools as ct
from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.sql.database import Database
from confluo_tools.sql.result import SqlResult
from confluo_tools.units import format_time
from remote_lab import shell
from running import BIN, CAMPUS, environment, run

Row = dict[str, Any]


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packets of our capture: a MultiLog with an index, and a table of Parquet."""
    folder = tmp_path_factory.mktemp("campus")
    run("confluo-convert", str(CAMPUS), "-w", str(folder / "campus.ml"), check=True)
    run("confluo-index", str(folder / "campus.ml"), "add", "dst_port", "src_ip", check=True)
    rows = ct.open(folder / "campus.ml").query(readable=True, zone=False)  # noqa: F841 - DuckDB finds it by its name
    duckdb.sql(f"copy (from rows) to '{folder / 'campus.parquet'}'")
    return folder


def sql(statement: str, *words: str, status: int = 0) -> list[Row]:
    """The rows as the command prints them."""
    done = run("confluo-sql", statement, "-o", "ndjson", *words)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(statement: str, *words: str) -> str:
    done = run("confluo-sql", statement, *words)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1, done.stderr
    return done.stderr.decode().strip()


def oracle(folder: Path, statement: str) -> list[Row]:
    """The same by DuckDB alone; times as texts with nanoseconds."""
    text = statement.replace("campus.ml", "campus.parquet")
    shown = duckdb.sql(text)
    times = ["TIMESTAMP" in str(kind) for kind in shown.types]
    parts = [
        f'epoch_ns("{n}"::timestamp_ns)' if time else f'"{n}"' for n, time in zip(shown.columns, times, strict=True)
    ]
    rows = duckdb.sql(f"select {', '.join(parts)} from ({text})").fetchall()
    kinds = list(zip(shown.columns, times, strict=True))
    return [{n: format_time(v) if t else v for (n, t), v in zip(kinds, row, strict=True)} for row in rows]


STATEMENTS = [
    "select src_ip, count(*) as n, sum(len) as total from 'LOG' where dst_port = 443 group by 1 order by 2 desc, 1",
    "select dst_port, avg(len) as mean, max(ts) as latest from 'LOG' where proto = 'udp' group by all order by 1",
    "select ts, src_ip, tcp_flags from 'LOG' where src_ip = '10.1.0.12' and len > 100 order by ts, len limit 20",
    "select count(*) as n from 'LOG' where ts between '2026-11-21 01:18:39' and timestamp '2026-11-21 01:18:40'",
    "select count(*) as n from 'LOG' where dst_port in (53, 443) or (proto = 'tcp' and ttl < 64)",
    """select a.src_ip, count(*) as n from 'LOG' a join 'LOG' b on a.ip_id = b.ip_id and a.dst_port = b.src_port
       where a.dst_port = 443 and b.len > 100 and a.ip_id > 0 group by 1 order by 2 desc, 1""",
    """select a.dst_port, count(b.ts) as n from 'LOG' a left join 'LOG' b on a.ts = b.ts and b.len > 60
       where a.dst_port = 53 group by 1""",
    "with big as (from 'LOG' where len > 1000) select proto, count(*) as n from big group by 1 order by 1",
    "select count(*) as n from 'LOG' where len > (select avg(len) from 'LOG' where dst_port = 443)",
    "select * exclude (file_offset) from 'LOG' where proto = 'icmp' order by ts, ip_id limit 3",
    "select count(*) as n from 'LOG' t where t.src_port = 443 and not (t.len = 66) union all select 7",
    "select src_ip, row_number() over (order by count(*) desc, src_ip) as place from 'LOG' group by 1 order by 2",
    "select dst_port as len, len as dst_port from 'LOG' where len < 61 order by all limit 3",
    "select #1, dst_port from 'LOG' where len < 61 order by all limit 3",
    "select len, b from 'LOG' t(a, b, len) where a < '2026-11-21 01:18:39' order by all limit 3",
    "select SRC_PORT, T.Len from 'LOG' t where DST_PORT = 443 order by all limit 3",
    "select count(distinct t) as n, count(distinct x) as m from 'LOG' T, (select 1 as x) where len < 100",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_answers_are_those_of_duckdb(campus: Path, statement: str) -> None:
    text = statement.replace("LOG", str(campus / "campus.ml"))
    found, expected = sql(text), oracle(campus, text)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert list(mine) == list(theirs)
        for name, value in theirs.items():
            assert mine[name] == (pytest.approx(value) if isinstance(value, float) else value), name


TIME_TYPES = ["timestamp ", "timestamp_s ", "timestamp_ms ", "timestamp_us ", "timestamp_ns ", "datetime "]


def conditions() -> st.SearchStrategy[str]:
    numbers = st.sampled_from(["len", "dst_port", "ttl", "ip_id", "tcp_window"])
    values = st.sampled_from([0, 1, 53, 64, 66, 443, 1514, 65535, 65536, 99999999999])
    signs = st.sampled_from(["=", "<", ">", "<=", ">=", "<>"])
    addresses = st.sampled_from(["10.1.0.12", "10.1.0.11", "fd00:1::11", "999.1.1.1", "", "x"])
    nets = st.sampled_from(["10.1.0.0/24", "10.0.0.0/8", "fd00::/16", "0.0.0.0/0"])
    times = st.sampled_from(
        ["2026-11-21 01:18:39", "2026-11-21T01:18:38.5", "2026-11-21", "2026-11-21 01:18:39.123456789"]
    )
    leaves = st.one_of(
        st.builds("{} {} {}".format, numbers, signs, values),
        st.builds("{1} {2} {0}".format, numbers, values, signs),
        st.builds("src_ip {} '{}'".format, st.sampled_from(["=", "<>", "<"]), addresses),
        st.builds("in_net(dst_ip, '{}')".format, nets),
        st.builds("ts {} {}'{}'".format, signs, st.sampled_from(["", *TIME_TYPES]), times),
        st.builds(
            "proto {} '{}'".format, st.sampled_from(["=", "<>"]), st.sampled_from(["tcp", "udp", "6", "nothing"])
        ),
        st.builds("len between {} and {}".format, values, values),
        st.builds("dst_port in ({}, {})".format, values, values),
        st.sampled_from(["tcp_flags like '%syn%'", "src_ip is null", "t.len > t.ttl", "src_port = dst_port"]),
    )
    return st.recursive(
        leaves,
        lambda below: st.one_of(
            st.builds("({} and {})".format, below, below),
            st.builds("({} or {})".format, below, below),
            st.builds("not ({})".format, below),
        ),
        max_leaves=5,
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conditions())
def test_conditions_of_the_log_change_no_answer(campus: Path, where: str) -> None:
    """What goes to our engine instead of DuckDB's selects the same rows."""
    statement = f"select count(*) as n, sum(file_offset) as sum from '{campus / 'campus.ml'}' t where {where}"
    with Database(threads=1) as database:
        parsed = database.parse(statement)
        assert parsed is not None
        text = database.prepare(parsed, {table.path: ct.open(table.path) for table in parsed.tables})
        found = [tuple(row.values()) for batch in blocks(SqlResult(database, text)) for row in batch]
    with duckdb.connect(config={"threads": 1}) as connection:
        from confluo_tools.sql.database import in_net

        connection.create_function("in_net", in_net, ["VARCHAR", "VARCHAR"], "BOOLEAN")  # type: ignore[arg-type]
        expected = connection.sql(statement.replace("campus.ml", "campus.parquet")).fetchall()
    assert found == expected


def blocks(result: SqlResult) -> list[list[Row]]:
    from confluo_tools.api.arrow import ArrowForm

    return [ct.Batch(result.schema, block, ArrowForm(result.schema, {})).to_dicts() for block, _ in result.blocks()]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select len from 'LOG' where dst_port = 443 and len > 5", ["dst_port == 443", "len > 5"]),
        ("select len from 'LOG' where 443 >= dst_port", ["dst_port <= 443"]),
        ("select len from 'LOG' where src_ip << '10.0.0.0/8'", ["src_ip in 10.0.0.0/8"]),
        ("select len from 'LOG' where src_ip = '999.1.1.1'", []),
        ("select len from 'LOG' where dst_port = 443 or len > ttl", []),
        ("select len from 'LOG' where dst_port + 1 = 444", []),
        ("select len from 'LOG' a where a.dst_port = 443 and b.len = 3", ["dst_port == 443"]),
        ("select a.len from 'LOG' a, 'LOG' b where a.dst_port = 443", ["dst_port == 443"]),
        ("select a.len from 'LOG' a left join 'LOG' b using (ts) where b.dst_port = 443", []),
        ("select x.len from (from 'LOG' where ttl = 3) x where x.dst_port = 443", ["ttl == 3"]),
        ("select x.a from 'LOG' as x(a, b) where dst_port = 443", []),
        ("select 1 from log('LOG', 'tcp') where len = 3", ["tcp", "len == 3"]),
        ("select len from 'LOG' where dst_port = 443 using sample 10 rows", []),
        ("select x.n from (select len as n from 'LOG' where ttl = 3) x using sample 10 rows", ["ttl == 3"]),
        ("select len from 'LOG' where ts < timestamp_s '2026-11-21 01:18:39'", ["ts < 2026-11-21T01:18:39Z"]),
        ("select len from 'LOG' where ts < timestamp_s '2026-11-21 01:18:39.5'", []),
    ],
)
def test_which_conditions_the_log_gets(campus: Path, statement: str, expected: list[str]) -> None:
    with Database() as database:
        parsed = database.parse(statement.replace("LOG", str(campus / "campus.ml")))
        assert parsed is not None
        database.prepare(parsed, {table.path: ct.open(table.path) for table in parsed.tables})
        assert [part for table in parsed.tables for part in [table.expr, *table.conditions] if part] == expected


@pytest.fixture(scope="module")
def hops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six blocks: each second is one, each port is in all of them, a number is in one row."""
    path = tmp_path_factory.mktemp("hops") / "hops.ml"
    fields = [("ts", "time"), ("port", "u16"), ("number", "u32")]
    schema = ct.Schema("hop", [ct.Field(name, kind) for name, kind in fields])
    rows = 65536
    with multilog.create(path, schema, segment_blocks=2) as log, log.writer() as writer:
        for second in range(6):
            ts = (1_800_000_000 + second) * 10**9 + np.arange(rows, dtype="<i8")
            number = np.random.default_rng(second).permutation(np.arange(rows, dtype="<u4") * 6 + second)
            port = (np.arange(rows) % 7).astype("<u2")
            writer.append(Block.wrap(schema.layout, rows, [ts.tobytes(), port.tobytes(), number.tobytes()]))
    run("confluo-index", str(path), "add", "number", check=True)
    return path


@pytest.mark.parametrize(
    ("where", "blocks", "scanned"),
    [
        ("ts >= '2027-01-15 08:00:03' and ts < '2027-01-15 08:00:04'", 1, 0),
        ("ts >= '2027-01-15 08:00:03.00001' and port = 3 and ts < '2027-01-15 08:00:05'", 2, 2),
        ("number = 77", 1, 0),
        ("number in (77, 78) and port < 7", 2, 0),
        ("number % 6 = 5", 6, 0),
    ],
)
def test_conditions_go_through_zone_maps_and_indexes(
    hops: Path, monkeypatch: pytest.MonkeyPatch, where: str, blocks: int, scanned: int
) -> None:
    """``blocks``: those that DuckDB gets rows of; ``scanned``: those in which a test of ours read all rows."""
    plans: list[QueryPlan] = []
    given: list[int] = []
    original = QueryPlan.rows_of

    def rows(self: QueryPlan, parts: Any) -> Any:
        plans.append(self)
        for block, picks in original(self, parts):
            given.append(block.base)
            yield block, picks

    monkeypatch.setattr(QueryPlan, "rows_of", rows)
    statement = f"select count(*) as n, sum(number)::bigint as sum from '{hops}' where {where}"
    with Database(threads=1) as database:
        parsed = database.parse(statement)
        assert parsed is not None
        text = database.prepare(parsed, {table.path: ct.open(table.path) for table in parsed.tables})
        found = [block.get(i, 0) for block, _ in SqlResult(database, text).blocks() for i in range(2)]
    assert len(given) == blocks
    everything = ct.open(hops).query(zone=False)  # noqa: F841 - DuckDB finds it by its name
    assert tuple(found) == duckdb.sql(statement.replace(f"'{hops}'", "everything")).fetchall()[0]
    steps = [step for step in plans[0].explain()["steps"] if step["op"] == "test"]
    assert sum(step["by_scan"] for step in steps) == scanned


def test_only_the_columns_of_the_statement_are_read(campus: Path) -> None:
    log = str(campus / "campus.ml")
    with Database() as database:
        for statement, names in [
            ("select sum(len) from '{}' where dst_port = 53", ["len", "dst_port"]),
            ("select count(*) from '{}'", ["ts"]),
            ("select a.len from '{0}' a join '{0}' b using (ip_id)", ["len", "ip_id"]),
            ("select t from '{}' t", None),
            ("from '{}'", None),
        ]:
            parsed = database.parse(statement.format(log))
            assert parsed is not None
            columns = parsed.named()
            everything = [f.name for f in ct.open(log).schema.fields]
            from confluo_tools.sql.tables import SqlTable

            assert SqlTable(ct.open(log), parsed.tables[0], columns).fields == (names or everything), statement


# --- our syntax and types


def test_flow_is_a_struct(campus: Path) -> None:
    rows = sql(
        f"select flow, count(*) n from '{campus / 'campus.ml'}' where proto = 'tcp' group by 1 order by 2 desc limit 2"
    )
    words = ("--agg", "count", "--by", "flow", "--top", "2", "-o", "ndjson")
    flows = [
        json.loads(line) for line in run("confluo-query", str(campus / "campus.ml"), "tcp", *words).stdout.splitlines()
    ]
    assert [row["flow"] for row in rows] == [{k: v for k, v in flow.items() if k != "count"} for flow in flows]
    assert [row["n"] for row in rows] == [flow["count"] for flow in flows]


def test_differences_of_times_are_in_nanoseconds(tmp_path: Path) -> None:
    for name, shift in (("a", 0), ("b", 7)):
        schema = ct.Schema("hop", [ct.Field("ts", "time"), ct.Field("ip_id", "u16")])
        with ct.Writer(tmp_path / f"{name}.ml", schema) as writer:
            writer.append([{"ts": 1_800_000_000_000_000_001 + n * 1000 + shift * n, "ip_id": n} for n in range(4)])
    rows = sql(
        f"select b.ts - a.ts as delay, max(b.ts) over () - min(a.ts) over () as span, a.ts from '{tmp_path / 'a.ml'}' a"
        f" join '{tmp_path / 'b.ml'}' b using (ip_id) order by ip_id"
    )
    assert [row["delay"] for row in rows] == [0, 7, 14, 21]
    assert rows[0]["ts"] == "2027-01-15T08:00:00.000000001Z"
    assert {row["span"] for row in rows} == {3021}


def test_absent_values_and_other_types_keep_their_meaning() -> None:
    statement = """select * from (values
        (1, 1.5, true, 'a', [1, 2], {'k': 1}, 170141183460469231731687303715884105727::hugeint,
         date '2026-11-20', 'x'::blob, 'nan'::double, timestamp '2026-11-20 10:00:00'),
        (null, null, null, null, null, null, null, null, null, null, null)) t(i, d, b, s, l, r, h, day, z, f, moment)"""
    first, second = sql(statement)
    assert first == {
        "i": 1, "d": 1.5, "b": True, "s": "a", "l": [1, 2], "r": {"k": 1},
        "h": 170141183460469231731687303715884105727, "day": "2026-11-20T00:00:00.000000000Z", "z": "x", "f": None,
        "moment": "2026-11-20T10:00:00.000000000Z",
    }  # fmt: skip
    assert set(second.values()) == {None}
    text = run("confluo-sql", statement.replace("true", "false"), "-o", "csv").stdout.decode().splitlines()
    assert text[0] == "i,d,b,s,l,r,h,day,z,f,moment"
    assert text[2] == ",,,,,,,,,,"
    assert sql("select sum(x) as small, count(*) as n from range(5) r(x)") == [{"small": 10, "n": 5}]
    assert sql('select 1 as a, 2 as a, 3 as "A b", 4') == [{"a": 1, "a_1": 2, "a_b": 3, "_4": 4}]
    assert sql("select 1 where false", status=1) == []


@pytest.mark.parametrize("form", ["stream", "arrow", "parquet"])
def test_absent_numbers_are_null_in_arrow_data(tmp_path: Path, form: str) -> None:
    statement = """select n, case when n % 3 > 0 then n end as big, case when n % 5 = 0 then (n / 4)::float end as part,
        case when n > 7 then make_timestamp_ns(n) end as ts, case when n % 2 = 0 then 'even' end as word,
        sum(n) over (order by n rows 3 preceding) as few, case when n <> 4 then sum(n) over (order by n) end as most
        from range(70000) r(n) order by n"""
    path = tmp_path / f"rows.{form}"
    run("confluo-sql", statement, "-o", form, "-w", str(path), check=True)
    if form == "parquet":
        table = pq.read_table(path)
    else:
        opened = pa.ipc.open_stream(path) if form == "stream" else pa.ipc.open_file(path)
        table = opened.read_all()
    table.validate(full=True)
    zone = None if form == "parquet" else "UTC"  # Parquet is readable, see test_readable.py
    types = [pa.int64(), pa.int64(), pa.float32(), pa.timestamp("ns", zone)]
    assert [table.schema.field(name).type for name in ("n", "big", "part", "ts")] == types
    assert table.schema.field("most").type == pa.int64()
    expected = duckdb.sql(f"select n, big, part, epoch_ns(ts), few, most from ({statement}) order by n").fetchall()
    columns = [table[name].to_pylist() for name in ("n", "big", "part")]
    columns.append(table["ts"].cast(pa.int64()).to_pylist())
    columns += [table[name].to_pylist() for name in ("few", "most")]
    assert list(zip(*columns, strict=True)) == expected
    back = run("confluo-query", str(path), "big == 0", "--count", check=True)  # absent is zero in our records
    assert int(back.stdout) == sum(row[1] is None for row in expected)


def test_chosen_fields_keep_what_is_absent(tmp_path: Path) -> None:
    statement = "select 1 as a, x as b from (values (3), (null)) t(x)"
    run("confluo-sql", statement, "-f", "b", "-w", str(tmp_path / "b.parquet"), check=True)
    assert pq.read_table(tmp_path / "b.parquet").to_pydict() == {"b": [3, None]}
    assert run("confluo-sql", statement, "-f", "b", "-o", "ndjson").stdout == b'{"b":3}\n{"b":null}\n'


def test_packets_are_matched_at_a_snapshot(tmp_path: Path) -> None:
    """The delay from one host to another, by what a switch does not change."""
    fields = [("ts", "time"), ("src_ip", "ip"), ("flow_hash", "u32"), ("ip_id", "u16"), ("tcp_seq", "u32")]
    schema = ct.Schema("hop", [ct.Field(name, kind) for name, kind in fields])
    start = 1_800_000_000_000_000_000
    for name, delay in (("host1", 0), ("host2", 1700)):
        with ct.Writer(tmp_path / f"{name}.ml", schema) as writer:
            writer.append(
                [
                    {"ts": start + n * 10_000 + delay + n % 3, "src_ip": f"10.{n % 2}.0.1", "flow_hash": n % 7,
                     "ip_id": n % 5, "tcp_seq": n * 100}
                    for n in range(100) if name == "host1" or n % 10
                ]
            )  # fmt: skip
    cut = tmp_path / "incident.yaml"
    logs = [str(tmp_path / f"{name}.ml") for name in ("host1", "host2")]
    run("confluo-snapshot", *logs, "-w", str(cut), check=True)
    with ct.Writer(logs[1]) as writer:  # after the snapshot
        writer.append([{"ts": start, "flow_hash": 0, "ip_id": 0, "tcp_seq": 0}])
    joined = "from host1 a join host2 b using (flow_hash, ip_id, tcp_seq)"
    rows = sql(f"select a.ts, b.ts - a.ts as delay {joined}", "--at", str(cut))
    assert [row["delay"] for row in rows] == [1700] * 90
    rows = sql(f"select count(*) as n {joined} where in_net(a.src_ip, '10.1.0.0/16')", "--at", str(cut))
    assert rows == [{"n": sum(n % 2 == 1 for n in range(100) if n % 10)}]
    missing = sql(
        "select count(*) as n from host1 a left join host2 b using (flow_hash, ip_id, tcp_seq) where b.ts is null",
        "--at",
        str(cut),
    )
    assert missing == [{"n": 10}]


def test_networks_of_any_column(campus: Path) -> None:
    log = campus / "campus.ml"
    both = sql(
        f"select count(*) filter (where in_net(src_ip, '10.1.0.0/24')) as a,"
        f" count(*) filter (where dst_ip << 'fd00::/8') as b from '{log}'"
    )
    assert both == [{"a": ct.open(log).count("src_ip in 10.1.0.0/24"), "b": ct.open(log).count("dst_ip in fd00::/8")}]


# --- inputs


def test_every_input_is_a_table(campus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, count = str(campus / "campus.ml"), "select count(*) as n from '{}' where proto = 'udp'"
    expected = sql(count.format(log))
    assert sql(count.format(CAMPUS)) == expected
    piped = run("confluo-query", log, "udp", "-f", "ts,proto", "-o", "stream", check=True).stdout
    done = run("confluo-sql", count.format("-"), "-o", "ndjson", stdin=piped)
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
    monkeypatch.setenv("CONFLUO_RSH", shell(tmp_path))
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    with Database() as database:
        parsed = database.parse(count.format(f"sw1:{log}"))
        assert parsed is not None
        text = database.prepare(parsed, {f"sw1:{log}": ct.open(f"sw1:{log}")})
        assert blocks(SqlResult(database, text)) == [expected]
    snapshot = str(tmp_path / "s.yaml")
    run("confluo-snapshot", log, "-w", snapshot, check=True)
    name = os.uname().nodename
    assert sql(count.format(name), "--at", snapshot) == expected
    assert f"has no log 'elsewhere'; it has {name}" in refused(count.format("elsewhere"), "--at", snapshot)


def test_unsafe_statements(campus: Path, tmp_path: Path) -> None:
    log, target = campus / "campus.ml", tmp_path / "out.parquet"
    copy = f"copy (select ts, len from '{log}' where proto = 'udp') to '{target}' (format parquet)"
    assert "is not a SELECT statement; only questions are possible" in refused(copy)
    assert not target.exists()
    assert run("confluo-sql", copy, "--unsafe").returncode == 0
    assert duckdb.sql(f"select count(*) from '{target}'").fetchall() == [(ct.open(log).count("udp"),)]
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    reading = f"select * from read_csv('{secret}')"
    assert "reads or writes a file that is not an input; --unsafe allows it" in refused(reading)
    assert sql(reading, "--unsafe") == [{"password": "hunter2"}]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("selec 1", 'SQL: syntax error at or near "selec"; line 1, column 1'),
        ("select 1;\nselect 2", "SQL: has several statements; give one"),
        ("attach '/tmp/x.db'", "only questions are possible"),
        ("install httpfs", "only questions are possible"),
        ("set enable_external_access=true", "only questions are possible"),
        ("select nothing from 'LOG'", "SQL: no column 'nothing'; \"describe select * from '"),
        ("select a.SRC_PRT, ts from 'LOG' a", "SQL: no column 'SRC_PRT'; did you mean 'src_port'?"),
        ("select country from 'LOG' where src_ipp = ''", "SQL: no column 'src_ipp'; did you mean 'src_ip'?"),
        ("select 1 from 'none.ml'", "none.ml: No such file or directory"),
        ("select 1 from log('LOG', 1)", "log() takes an input and an expression; log('trace.ml', 'tcp')"),
        ("select * from glob('/etc/*')", "--unsafe allows it"),
        ("select getenv('HOME')", "SQL: "),
        (
            "select repeat('x', 70000) as long from 'LOG' limit 1",
            "column 'long' has a text of 70000 bytes; 65535 are possible",
        ),
        ("select error('one' || chr(10) || 'two')", "one"),
        ("select timestamp '5000-01-01 00:00:00' t", "SQL: a time is before 1677 or after 2262; cast it to a text"),
        ("select timestamp '5000-01-01 00:00:00' t union all select null", "SQL: a time is before 1677"),
        ("select 'infinity'::timestamp t", "SQL: column 't' has a time without end; cast it to a text"),
        (f"select {'[' * 150}1{']' * 150}", "confluo-sql: SQL: is nested too deeply; name its parts with WITH"),
        (f"select {'[' * 400}1{']' * 400}", "confluo-sql: SQL: is nested too deeply; name its parts with WITH"),
    ],
)
def test_errors_are_one_line(campus: Path, statement: str, message: str) -> None:
    assert message in refused(statement.replace("LOG", str(campus / "campus.ml")))


def test_a_wrong_expression_is_shown_as_elsewhere(campus: Path) -> None:
    words = str(campus / "campus.ml"), "(dst_prt == 1)"
    mine, theirs = (
        run("confluo-sql", "select 1 from log('{}', 'dst_prt == 1')".format(*words)),
        run("confluo-query", *words),
    )
    assert mine.returncode == 2
    assert mine.stderr.replace(b"confluo-sql", b"confluo-query") == theirs.stderr
    assert b"no field 'dst_prt'" in mine.stderr


def test_the_folder_of_the_database_goes_with_a_closed_pipe(campus: Path, tmp_path: Path) -> None:
    statement = f"select a.* from '{campus / 'campus.ml'}' a, range(30)"
    command = f'{BIN / "confluo-sql"} "$1" -T | head -1; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", command, "bash", statement],
        env=environment() | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == b"141"
    assert done.stderr == b""
    assert list(tmp_path.iterdir()) == []


def test_an_address_of_zeros_is_none_that_is_absent(tmp_path: Path) -> None:
    """Only its version, which is not read for itself, tells them apart."""
    rows = [{"ts": 1, "ip_version": 4, "src_ip": "0.0.0.0", "len": 1}, {"ts": 2, "len": 2}]
    log = str(tmp_path / "a.ml")
    with ct.Writer(log, "packet") as writer:
        writer.append(rows)
    assert sql(f"select src_ip, len from '{log}' order by len") == [
        {"src_ip": "0.0.0.0", "len": 1},
        {"src_ip": None, "len": 2},
    ]
    for where in ("src_ip = '0.0.0.0'", "src_ip << '0.0.0.0/8'", "src_ip is not null"):
        assert sql(f"select len from '{log}' where {where}") == [{"len": 1}], where
    answer = ct.open(log).query(fields=["src_ip"])
    assert answer.to_dicts() == [{"src_ip": "0.0.0.0"}, {"src_ip": None}]
    assert [f.name for f in answer.schema.fields] == ["src_ip"]
    assert answer.to_arrow().column_names == next(iter(answer)).names == ["src_ip", "src_ip6"]
    readable = ct.open(log).query(fields=["len", "src_ip"], readable=True).to_arrow()
    assert readable.to_pydict() == {"len": [1, 2], "src_ip": ["0.0.0.0", None]}
    follower = ct.open(log).follow(fields=["src_ip"], since=0)
    first = next(iter(follower))
    follower.stop()
    assert first.to_dicts()[0] == {"src_ip": "0.0.0.0"}


def test_damage_and_broken_inputs_are_reported(campus: Path, tmp_path: Path) -> None:
    data = run("confluo-query", str(CAMPUS), "-f", "ts,len", "-o", "stream", check=True).stdout
    (tmp_path / "bad.arrows").write_bytes(data[:-8] + data)
    assert refused(f"select sum(len) from '{tmp_path / 'bad.arrows'}'").endswith(
        "has a second schema without an end mark before it"
    )
    (tmp_path / "cut.arrows").write_bytes(data[:-20])
    done = run("confluo-sql", f"select count(*) as n from '{tmp_path / 'cut.arrows'}'", "-o", "ndjson")
    assert done.returncode == 2
    assert b"ends in the middle of a message" in done.stderr


def test_memory_is_limited() -> None:
    groups = "select count(*) as n from (select x, count(*) from range(3000000) r(x) group by x)"
    assert sql(groups, "--memory-limit", "60M") == [{"n": 3000000}]
    done = run("confluo-sql", "select list(x) as all from range(30000000) r(x)", "--memory-limit", "40M")
    assert done.returncode == 2
    assert done.stderr == b"confluo-sql: SQL: needs more memory than it may use; --memory-limit sets it\n"


def test_nothing_is_drawn_among_the_rows() -> None:
    """DuckDB draws its progress on standard output where it finds no program file, as here."""
    code = (
        "from confluo_tools.sql.database import Database\n"
        "with Database() as made:\n"
        "    print(made.connection.execute(\"select current_setting('enable_progress_bar')\").fetchall())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout == "[(False,)]\n"
