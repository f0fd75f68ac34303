"""Five questions of a day's work to a log and an archive, next to other engines on the same rows.  TSV.

    .venv/bin/python bench/engines.py [--rows 50_000_000] [--cache FOLDER] [--only "PROGRAM;PROGRAM"]

The rows are packets of heavy-tailed flows (47,000 pairs of address and port, 240,000 four-tuples, a microsecond from
row to row), made once and kept in --cache or $CONFLUO_BENCH_CACHE: a MultiLog, an archive of it, and one Parquet file
that DuckDB wrote by its defaults, with times as integers.  DuckDB reads that file, and the files of the archive, too.

    ports        count and bytes by source and port, the ten with the most packets
    filter       number of rows with a port, a protocol and a flag
    percentiles  count, median and 99th percentile of the length by 10 s; DuckDB by t-digest, which is its fastest
    second       count and bytes of one second
    tuples       number of different four-tuples
    small        the first question to 10,000 rows: what an engine costs, once there is a session with it
    many         count and bytes by source and sequence number (a group for each row), the first three, in 1 GiB of
                 memory; only with --ask many, once

Each program is a process of its own for one core (bound to it) and one for all; all answer each question in turn, three
times, and the best counts, with the files in the page cache.  Answers must be equal (percentiles: the counts).
The last column is the time of DuckDB on as many cores, divided by that of the program: above 1 it is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from bench.timing import header, row

START = 1_700_000_000_000_000_000 // 3_600_000_000_000 * 3_600_000_000_000
STEP = 1000  # ns from row to row
CHUNK = 65536
SMALL = 10_000
ROUNDS = 3
MEMORY = 1 << 30  # of the question `many`
CORES = sorted(os.sched_getaffinity(0))
COLUMNS = ("ts", "src_ip", "dst_ip", "src_port", "dst_port", "proto", "tcp_flags", "len", "ttl", "seq")
QUESTIONS = ("ports", "filter", "percentiles", "second", "tuples", "small")
Ask = Callable[[str], Any]  # a question, to its answer


def second(rows: int) -> tuple[int, int]:
    """The time range of the question `second`: in the middle of the rows, a second or a tenth of them."""
    length = min(1_000_000_000, rows * STEP // 10)
    first = START + rows * STEP // 2
    return first, first + length


# --- the rows


def make(folder: Path, rows: int) -> None:
    """The logs, the archives and the Parquet files in ``folder``, which is there when they are whole."""
    import duckdb

    import confluo_tools.api as ct
    from confluo_tools import multilog
    from confluo_tools.multilog.archive.writer import ArchiveWriter

    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, n in (("flows", rows), ("small", min(SMALL, rows))):
        with multilog.create(part / f"{name}.ml", schema()) as log:
            with log.writer() as writer:
                for block in packets(n):
                    writer.append(block)
            with ArchiveWriter(log, part / f"{name}.archive", "h") as archive:
                for batch, record in archive.plan(None):
                    archive.run(batch, record, remove=False)
        everything = ct.open(part / f"{name}.ml").query(zone=False)  # noqa: F841 - DuckDB finds it by its name
        columns = "epoch_ns(ts) as ts, " + ", ".join(COLUMNS[1:])
        duckdb.sql(f"copy (select {columns} from everything) to '{part}/{name}.parquet' (format parquet)")
    part.rename(folder)


def schema() -> Any:
    import confluo_tools.api as ct

    types = ("time", "ipv4", "ipv4", "u16", "u16", "u8", "flags(u8)", "u32", "u8", "u32")
    names = {1: "fin", 2: "syn", 4: "rst", 8: "psh", 16: "ack", 32: "urg"}
    fields = [
        ct.Field(name, kind, names=names) if name == "tcp_flags" else ct.Field(name, kind)
        for name, kind in zip(COLUMNS, types, strict=True)
    ]
    return ct.Schema("flow_packet", fields)


def packets(rows: int) -> Any:
    """Blocks of packets of 243,000 flows, the number of packets by a Pareto distribution; always the same."""
    import numpy as np

    from confluo_tools.core.block.block import Block

    chance = np.random.default_rng(4)
    flows = 243_000
    weight = np.cumsum(chance.pareto(1.1, flows) + 0.5)
    weight /= weight[-1]
    src = (0x0A000000 + np.minimum(chance.pareto(0.8, flows) * 40, 4000)).astype("<u4")
    dst = (0x0A010000 + np.minimum(chance.pareto(0.8, flows) * 40, 4000)).astype("<u4")
    sport = chance.integers(32768, 60999, flows).astype("<u2")
    ports = np.array([443, 80, 53, 22, 25, 123, 993, 3306, 5432, 6379, 8080, 9092], "<u2")
    dport = np.where(chance.random(flows) < 0.15, chance.integers(1024, 65535, flows), chance.choice(ports, flows))
    dport = dport.astype("<u2")
    proto = np.where(np.isin(dport, (53, 123)), 17, 6).astype("u1")
    ttl = chance.choice(np.array([57, 62, 64, 119, 128, 255], "u1"), flows)
    large = chance.random(flows)  # the part of full-sized packets of a flow
    flags = np.array([2, 18, 16, 16, 16, 24, 24, 17], "u1")
    sizes = np.array([54, 60, 66, 90, 130, 300, 590, 1000], "<u4")
    for start in range(0, rows, CHUNK):
        n = min(CHUNK, rows - start)
        flow = np.searchsorted(weight, chance.random(n))
        ts = START + (np.arange(start, start + n, dtype="<i8")) * STEP + chance.integers(0, STEP, n)
        length = np.where(chance.random(n) < large[flow], 1514, sizes[chance.integers(0, 8, n)]).astype("<u4")
        tcp = np.where(proto[flow] == 6, flags[chance.integers(0, 8, n)], 0).astype("u1")
        columns = [ts, src[flow], dst[flow], sport[flow], dport[flow], proto[flow], tcp, length, ttl[flow]]
        columns.append(chance.integers(0, 1 << 32, n).astype("<u4"))
        yield Block.wrap(schema().layout, n, [c.tobytes() for c in columns])


# --- the programs: each gives (address, port, packets, bytes), a number, (packets by 10 s), (packets, bytes), a number


def cluster(cores: int) -> Any:
    """A cluster of Dask on this host, with a process for each core; it ends with this process."""
    from distributed import LocalCluster

    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    made: Any = LocalCluster
    return made(n_workers=cores, threads_per_worker=1, dashboard_address=":0")


def confluo(kind: str, engine_kind: str = "local") -> Callable[[Path, int, int], Ask]:
    """Ours on ``kind``: "ml" or "archive"; on several cores as with --engine local.

    ``engine_kind``: "dask" or "spark", by --engine dask:// or spark://; the session is kept, as the others keep theirs.
    """

    def make(folder: Path, rows: int, cores: int) -> Ask:
        engine = "local" if cores > 1 else None
        if engine_kind == "dask":
            started = cluster(cores)
            engine = f"dask://{started.scheduler_address.partition('://')[2]}"
        elif engine_kind == "spark":
            engine = spark_cluster(cores)
        from confluo_tools.engine import address
        from confluo_tools.engine.reader import with_engine
        from confluo_tools.inputs.grouped_rows import GroupedRows
        from confluo_tools.inputs.open import open_records
        from confluo_tools.inputs.selection import Selection, compile_expr
        from confluo_tools.schema.types import ARRAY_CODES

        runner = None if engine is None else address.runner(engine)

        def selection(name: str, text: str, span: tuple[int | None, int | None] = (None, None)) -> Selection:
            reader = open_records([str(folder / f"{name}.{kind}")])
            if runner is not None:
                reader = with_engine(reader, runner)
            return Selection(reader, compile_expr(text, reader, span, None))

        def groups(
            found: Selection, agg: str, by: str | None, top: int | None = None, memory: int | None = None
        ) -> list[tuple[Any, ...]]:
            out: list[tuple[Any, ...]] = []
            answer = GroupedRows(found, agg, by, None, top, memory=memory)
            for block, _ in answer.selected(None, None):
                columns: list[Any] = [block.buffer(i) for i in range(answer.schema.layout.n)]
                codes = [ARRAY_CODES[c.code - 1] for c in answer.schema.columns]
                out += zip(*[c.cast(code) for c, code in zip(columns, codes, strict=True)], strict=True)
            return out

        def ask(question: str) -> Any:
            if question in ("ports", "small"):
                name = "flows" if question == "ports" else "small"
                return groups(selection(name, ""), "count, sum(len)", "src_ip, dst_port", 10)
            if question == "filter":
                return selection("flows", "dst_port == 443 and proto == 6 and tcp_flags has syn").count(None)
            if question == "percentiles":
                return [n for _, n, _, _ in groups(selection("flows", ""), "count, p50(len), p99(len)", "10s")]
            if question == "second":
                return groups(selection("flows", "", second(rows)), "count, sum(len)", None)[0]
            if question == "many":
                if engine:
                    return None
                return groups(selection("flows", ""), "count, sum(len)", "src_ip, seq", 3, MEMORY)
            rollup = GroupedRows(selection("flows", ""), "count", "src_ip, dst_ip, src_port, dst_port", None, None)
            return len(rollup.selection.fold(rollup.names, rollup.question.rollup))

        return ask

    return make


def duckdb(kind: str) -> Callable[[Path, int, int], Ask]:
    """DuckDB on ``kind``: "parquet" (the one file) or "archive" (our files)."""

    def make(folder: Path, rows: int, cores: int) -> Ask:
        import duckdb

        database = duckdb.connect(":memory:", config={"threads": cores})
        own = kind == "parquet"
        ts = "ts" if own else "epoch_ns(ts)"
        first, after = second(rows)
        if own:
            within = f"ts >= {first} and ts < {after}"
        else:
            edges = [f"make_timestamp_ns({t})::timestamptz_ns" for t in (first, after)]
            within = f"ts >= {edges[0]} and ts < {edges[1]}"

        def ask(question: str) -> Any:
            name = "small" if question == "small" else "flows"
            table = f"'{folder}/{name}.parquet'" if own else f"read_parquet('{folder}/{name}.archive/**/*.parquet')"
            if question in ("ports", "small"):
                sql = f"select src_ip, dst_port, count(*) n, sum(len)::bigint from {table} group by 1, 2"
                return database.sql(f"{sql} order by n desc, src_ip, dst_port limit 10").fetchall()
            if question == "filter":
                where = "dst_port = 443 and proto = 6 and tcp_flags & 2 != 0"
                return database.sql(f"select count(*) from {table} where {where}").fetchall()[0][0]
            if question == "percentiles":
                sql = f"select {ts} // 10000000000, count(*), approx_quantile(len, [0.5, 0.99]) from {table}"
                return [n for _, n, _ in database.sql(f"{sql} group by 1 order by 1").fetchall()]
            if question == "many":
                database.sql(f"set memory_limit='{MEMORY}B'")
                sql = f"select src_ip, seq, count(*) n, sum(len)::bigint from {table} group by 1, 2"
                return database.sql(f"{sql} order by n desc, src_ip, seq limit 3").fetchall()
            if question == "second":
                sql = f"select count(*), sum(len)::bigint from {table} where {within}"
                return database.sql(sql).fetchall()[0]
            sql = f"select count(*) from {table} group by src_ip, dst_ip, src_port, dst_port"
            return database.sql(f"select count(*) from ({sql})").fetchall()[0][0]

        return ask

    return make


def polars(folder: Path, rows: int, cores: int) -> Ask:
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    import polars as pl

    first, after = second(rows)

    def ask(question: str) -> Any:
        if question == "many":
            return None  # it has no limit of memory
        table = pl.scan_parquet(folder / ("small.parquet" if question == "small" else "flows.parquet"))
        if question in ("ports", "small"):
            found = table.group_by("src_ip", "dst_port").agg(pl.len().alias("n"), pl.col("len").cast(pl.Int64).sum())
            order = found.sort("n", "src_ip", "dst_port", descending=[True, False, False])
            return order.head(10).collect(engine="streaming").rows()
        if question == "filter":
            where = (pl.col("dst_port") == 443) & (pl.col("proto") == 6) & (pl.col("tcp_flags") & 2 != 0)
            return table.filter(where).select(pl.len()).collect(engine="streaming").item()
        if question == "percentiles":
            size = pl.col("len")
            some = [pl.len(), size.quantile(0.5).alias("p50"), size.quantile(0.99).alias("p99")]
            found = table.group_by((pl.col("ts") // 10_000_000_000).alias("b")).agg(*some).sort("b")
            return found.collect(engine="streaming")["len"].to_list()
        if question == "second":
            found = table.filter((pl.col("ts") >= first) & (pl.col("ts") < after))
            both = found.select(pl.len(), pl.col("len").cast(pl.Int64).sum().alias("b"))
            return both.collect(engine="streaming").row(0)
        keys = ("src_ip", "dst_ip", "src_port", "dst_port")
        return table.group_by(*keys).agg(pl.len()).select(pl.len()).collect(engine="streaming").item()

    return ask


def arrow(folder: Path, rows: int, cores: int) -> Ask:
    """A dataset of pyarrow; it has no quantiles by group that would not hold all rows in memory."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    pa.set_cpu_count(cores)
    first, after = second(rows)

    def ask(question: str) -> Any:
        table = ds.dataset(folder / ("small.parquet" if question == "small" else "flows.parquet"))
        if question in ("ports", "small"):
            found = table.to_table(columns=["src_ip", "dst_port", "len"]).group_by(["src_ip", "dst_port"])
            groups = found.aggregate([([], "count_all"), ("len", "sum")])
            order = [("count_all", "descending"), ("src_ip", "ascending"), ("dst_port", "ascending")]
            some = groups.sort_by(order).slice(0, 10).select(["src_ip", "dst_port", "count_all", "len_sum"])
            return [tuple(one.values()) for one in some.to_pylist()]
        if question == "filter":
            flag = pc.bit_wise_and(pc.field("tcp_flags"), pa.scalar(2, pa.uint8())) != 0
            return table.count_rows(filter=(pc.field("dst_port") == 443) & (pc.field("proto") == 6) & flag)
        if question in ("percentiles", "many"):
            return None
        if question == "second":
            where = (pc.field("ts") >= first) & (pc.field("ts") < after)
            found = table.to_table(columns=["len"], filter=where)
            return found.num_rows, pc.sum(found["len"]).as_py()
        keys = ["src_ip", "dst_ip", "src_port", "dst_port"]
        return table.to_table(columns=keys).group_by(keys).aggregate([]).num_rows

    return ask


def spark_cluster(cores: int) -> str:
    """The address of a cluster of Spark on this host, with a worker for each core."""
    from bench import spark_cluster

    return spark_cluster.cluster(cores)


def spark_sql(folder: Path, rows: int, cores: int) -> Ask:
    """SQL of Spark on the same kind of cluster as ours, from the file that DuckDB wrote."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    session = builder.master(spark_cluster(cores)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    first, after = second(rows)

    def ask(question: str) -> Any:
        table = f"parquet.`{folder}/{'small' if question == 'small' else 'flows'}.parquet`"

        def found(sql: str) -> list[tuple[Any, ...]]:
            return [tuple(map(int, one)) for one in session.sql(sql).collect()]

        if question in ("ports", "small"):
            sql = f"select src_ip, dst_port, count(*) n, sum(len) from {table} group by 1, 2"
            return found(f"{sql} order by n desc, src_ip, dst_port limit 10")
        if question == "filter":
            where = "dst_port = 443 and proto = 6 and tcp_flags & 2 != 0"
            return found(f"select count(*) from {table} where {where}")[0][0]
        if question == "percentiles":
            sql = f"select ts div 10000000000, count(*), percentile_approx(len, array(0.5, 0.99)) from {table}"
            return [int(n) for _, n, _ in session.sql(f"{sql} group by 1 order by 1").collect()]
        if question == "second":
            return found(f"select count(*), sum(len) from {table} where ts >= {first} and ts < {after}")[0]
        if question == "tuples":
            sql = f"select count(*) from {table} group by src_ip, dst_ip, src_port, dst_port"
            return found(f"select count(*) from ({sql})")[0][0]
        return None

    return ask


def dask_frame(folder: Path, rows: int, cores: int) -> Ask:
    """A dataframe of Dask on the same cluster as ours."""
    import dask.dataframe as dd
    from distributed import Client

    connect: Any = Client
    frames: Any = dd
    client = connect(cluster(cores))
    first, after = second(rows)

    def ask(question: str) -> Any:
        table = frames.read_parquet(folder / ("small.parquet" if question == "small" else "flows.parquet"))
        if question in ("ports", "small"):
            found = table.groupby(["src_ip", "dst_port"])["len"].agg(["count", "sum"])
            some = client.compute(found).result().reset_index()
            some = some.sort_values(["count", "src_ip", "dst_port"], ascending=[False, True, True]).head(10)
            return [tuple(map(int, one)) for one in some.itertuples(index=False)]
        if question == "filter":
            where = (table["dst_port"] == 443) & (table["proto"] == 6) & (table["tcp_flags"] & 2 != 0)
            return int(client.compute(where.sum()).result())
        if question == "second":
            size = table[(table["ts"] >= first) & (table["ts"] < after)]["len"]
            return [int(client.compute(one).result()) for one in (size.count(), size.sum())]
        if question == "tuples":
            keys = ["src_ip", "dst_ip", "src_port", "dst_port"]
            return len(client.compute(table.groupby(keys).size()).result())
        return None

    return ask


PROGRAMS: dict[str, Callable[[Path, int, int], Ask]] = {
    "confluo log": confluo("ml"),
    "confluo archive": confluo("archive"),
    "confluo log, Dask": confluo("ml", "dask"),
    "confluo archive, Dask": confluo("archive", "dask"),
    "Dask dataframe": dask_frame,
    "confluo log, Spark": confluo("ml", "spark"),
    "confluo archive, Spark": confluo("archive", "spark"),
    "Spark SQL": spark_sql,
    "DuckDB": duckdb("parquet"),
    "DuckDB archive": duckdb("archive"),
    "Polars": polars,
    "pyarrow": arrow,
}


# --- one process for each program and number of cores


def serve(program: str, cores: int, folder: Path, rows: int) -> None:
    """Answer the questions on standard input: a line of JSON with the seconds and the answer for each."""
    os.sched_setaffinity(0, CORES[:cores])
    ask = PROGRAMS[program](folder, rows, cores)
    for line in sys.stdin:
        start = time.perf_counter()
        answer = ask(line.strip())
        print(json.dumps([time.perf_counter() - start, answer]), flush=True)


class Child:
    """A program on a number of cores."""

    def __init__(self, program: str, cores: int, folder: Path, rows: int) -> None:
        words = [sys.executable, __file__, "--serve", program, "--cores", str(cores), "--rows", str(rows)]
        words += ["--cache", str(folder)]
        self.program, self.cores, self.best = program, cores, dict[str, float]()
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.program} ended at the question {question}")
        seconds, answer = json.loads(line)
        self.best[question] = min(seconds, self.best.get(question, seconds))
        return answer

    def end(self) -> None:
        self._process.communicate()


def compare(folder: Path, rows: int, programs: list[str], questions: list[str]) -> None:
    children = [Child(name, n, folder, rows) for name in programs for n in dict.fromkeys((1, len(CORES)))]
    header("question", "program", "cores", "s", "M rows/s", "DuckDB / program")
    for question in questions:
        answers: dict[str, Any] = {}
        for _ in range(ROUNDS if question != "many" else 1):
            for child in children:
                answer = child.ask(question)
                if answer is not None:
                    answers[f"{child.program} on {child.cores}"] = answer
        if any(answer != next(iter(answers.values())) for answer in answers.values()):
            raise SystemExit(f"{question}: the answers differ: {answers}")
        peer = {child.cores: child.best[question] for child in children if child.program == "DuckDB"}
        for child in children:
            if f"{child.program} on {child.cores}" in answers:
                seconds = child.best[question]
                n = SMALL if question == "small" else rows
                ratio = f"{peer[child.cores] / seconds:.2f}" if child.cores in peer else "-"
                row(question, child.program, child.cores, seconds, n / seconds / 1e6, ratio)
    for child in children:
        child.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(text.replace("_", "")), default=50_000_000)
    parser.add_argument("--cache", type=Path, default=os.environ.get("CONFLUO_BENCH_CACHE"))
    parser.add_argument("--only", default=";".join(PROGRAMS))
    parser.add_argument("--ask", default=",".join(QUESTIONS))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.cores, options.cache, options.rows)
        return
    with tempfile.TemporaryDirectory(prefix="confluo-bench-") as scratch:
        folder = Path(options.cache or scratch) / f"flows-{options.rows}"
        if not folder.exists():
            make(folder, options.rows)
        compare(folder, options.rows, options.only.split(";"), options.ask.split(","))


if __name__ == "__main__":
    main()
