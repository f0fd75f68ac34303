"""Records a second into ClickHouse: our writer, next to clickhouse-client with the same blocks, and CSV through curl.

    .venv/bin/python bench/clickhouse.py [--server 127.0.0.1:8123] [--native 9000] [--rows 2000000]

The packets have the fields of telemetry (18), 2 us apart, of 5000 flows.  `MergeTree` is a table as --ddl makes it;
`Null` forgets the rows: what reading them costs.  Addresses are text in CSV, and so they are in its table.
The server must run; its tables `bench` and `bench_csv` are made again.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "bench"))

from stream_functions import packets

from confluo_tools.clickhouse import statements
from confluo_tools.clickhouse.address import parse
from confluo_tools.clickhouse.clickhouse_writer import SIZE, ClickHouseWriter
from confluo_tools.clickhouse.server import ClickHouseServer
from confluo_tools.clickhouse.settings import settings
from confluo_tools.clickhouse.table import describe, dialect_of, shape_for
from confluo_tools.core.clickhouse.native_batch import NativeBatch

TEXTS = ("src_ip", "dst_ip")
TIMES = 3  # the fastest counts: merges of the run before slow the next one


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="127.0.0.1:8123")
    parser.add_argument("--native", type=int, default=9000)
    parser.add_argument("--rows", type=int, default=2_000_000)
    args = parser.parse_args()
    blocks, schema = packets()
    address = parse(f"clickhouse://{args.server}/bench")
    server = ClickHouseServer(address, settings())
    made = statements.create_table(address, schema, dialect_of(server)).rstrip(";\n")
    host = args.server.partition(":")[0]
    names = ", ".join(f.name for f in schema.fields)
    print("table\tsender\tM_rows_s\tMB_s\tcpu_ns_a_row_of_the_sender")
    with tempfile.TemporaryDirectory() as folder:
        native, csv = Path(folder, "rows.native"), Path(folder, "rows.csv")
        for engine in ("MergeTree", "Null"):
            statement = made if engine == "MergeTree" else f"{made.partition('ENGINE')[0]}ENGINE = Null"
            make(server, statement)
            if not native.exists():
                prepare(server, args, blocks, schema, native, csv)
                make(server, statement)
            insert = f"INSERT INTO bench ({names}) FORMAT Native"
            client = ["clickhouse-client", "--host", host, "--port", str(args.native), "--query", insert]
            url = f"http://{args.server}/?query=" + quote(f"INSERT INTO bench_csv ({names}) FORMAT CSV")
            curl = ["curl", "-sSf", "-X", "POST", "-T", str(csv), url]
            senders = {
                "ours": (native, lambda: ours(address, blocks, schema, args.rows)),
                "clickhouse-client, Native": (native, lambda words=client: other(words, native)),
                "curl, CSV": (csv, lambda words=curl: other(words)),
            }
            for name, (path, sender) in senders.items():
                found = []
                for _ in range(TIMES):
                    make(server, statement)
                    found.append(measured(name, sender))
                took, cpu = min(found)
                rates = f"{args.rows / took / 1e6:.2f}\t{path.stat().st_size / took / 1e6:.0f}"
                print(f"{engine}\t{name}\t{rates}\t{1e9 * cpu / args.rows:.0f}", flush=True)
        for table in ("bench", "bench_csv"):
            run(server, f"DROP TABLE {table}")


def make(server, statement):
    """Both tables, empty."""
    text = re.sub(r"`(src_ip|dst_ip)` \S+", r"`\1` String", statement.replace("`bench`", "`bench_csv`"))
    for sql in ("DROP TABLE IF EXISTS bench", "DROP TABLE IF EXISTS bench_csv", statement, text):
        run(server, sql)


def prepare(server, args, blocks, schema, native, csv):
    """The rows as blocks of Native, and as CSV that the server writes."""
    shape = shape_for(schema, describe(server))
    batch = NativeBatch(shape, min(SIZE // shape.row_bytes, 1 << 20))
    with open(native, "wb") as f:
        for block in given(blocks, args.rows):
            if batch.capacity - batch.rows < block.rows:
                f.writelines(batch.pieces())
                batch.clear()
            batch.add_rows(block)
        f.writelines(batch.pieces())
    ours(parse(f"clickhouse://{args.server}/bench"), blocks, schema, args.rows)
    names = ", ".join(f"IPv6NumToString({f.name})" if f.name in TEXTS else f.name for f in schema.fields)
    with open(csv, "wb") as f:
        asked = f"SELECT {names} FROM bench FORMAT CSV"
        subprocess.run(["curl", "-sSf", f"http://{args.server}/", "-d", asked], stdout=f, check=True)


def run(server, sql):
    server.insert(sql, [b""], {})


def given(blocks, rows):
    while rows:
        for block in blocks:
            if rows < block.rows:
                yield block.slice(0, rows)
                return
            rows -= block.rows
            yield block


def ours(address, blocks, schema, rows):
    writer = ClickHouseWriter(address, schema, settings())
    for block in given(blocks, rows):
        writer.write(block)
    writer.close()


def other(words, path=None):
    with open(path or "/dev/null", "rb") as f:
        subprocess.run(words, stdin=f, stdout=subprocess.DEVNULL, check=True)


def measured(name, sender):
    """(seconds, CPU seconds of the sender)."""
    who = resource.RUSAGE_SELF if name == "ours" else resource.RUSAGE_CHILDREN
    before, start = resource.getrusage(who), time.perf_counter()
    sender()
    took, after = time.perf_counter() - start, resource.getrusage(who)
    return took, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
