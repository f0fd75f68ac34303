"""--geo: what databases of addresses say, against the library maxminddb row by row, on every kind of input."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import confluo_tools as ct
from confluo_tools.core.block.block import Block, Picks
from confluo_tools.errors import FormatError, UsageError
from confluo_tools.expr import compile
from confluo_tools.formats.address_database import MARKER, AddressDatabase
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.query.geo_fields import PLACES, GeoReader
from confluo_tools.schema import Field, Schema, fold6
from confluo_tools.schema.geo_fields import GEO_FIELDS, PLACE_NAMES
from remote_lab import env
from running import CAMPUS, run

maxminddb = pytest.importorskip("maxminddb", reason="the package maxminddb is not installed")
mmdb_writer = pytest.importorskip("mmdb_writer", reason="the package mmdb_writer is not installed")

ROWS = Schema(
    "pair", [Field("src_ip", "ip", version="v"), Field("v", "u8"), Field("dst_ip", "ipv4"), Field("n", "u32")]
)


def record(rng: random.Random) -> dict[str, Any]:
    """A record of a city, of which parts may be missing; some names are longer than the field."""
    out: dict[str, Any] = {"location": {"latitude": rng.random(), "radius": rng.randrange(1 << 16), "metro": True}}
    if rng.random() < 0.9:
        out["country"] = {"iso_code": rng.choice(["DE", "FR", "JP", "CH"]), "names": {"en": "x", "de": "y"}}
    if rng.random() < 0.7:
        out["city"] = {"names": {"de": "Ort", "en": rng.choice(["Kraków", "Bern", "ü" * 40, "a" + "€" * 30, "東京"])}}
    if rng.random() < 0.7:
        out["autonomous_system_number"] = rng.choice([1, 64496, (1 << 32) - 1])
        out["autonomous_system_organization"] = f"Example {rng.randrange(5)}"
    return out


def database(path: Path, version: int, seed: int, kind: str = "Test") -> str:
    """A database of random networks; those of IPv6 include the IPv4 ones."""
    from netaddr import IPSet

    rng, writer = random.Random(seed), mmdb_writer.MMDBWriter(version, kind, ipv4_compatible=version == 6)
    for _ in range(40):
        size = rng.choice([3, 8, 9, 16, 24, 31, 32])
        writer.insert_network(
            IPSet([f"{ipaddress.IPv4Address(rng.getrandbits(32) >> (32 - size) << (32 - size))}/{size}"]), record(rng)
        )
    for _ in range(20 if version == 6 else 0):
        size = rng.choice([16, 32, 48, 64, 127, 128])
        net = (0x2001 << 112 | rng.getrandbits(112)) >> (128 - size) << (128 - size)
        writer.insert_network(IPSet([f"{ipaddress.IPv6Address(net)}/{size}"]), record(rng))
    for net in ("10.0.0.0/8", "10.1.0.12/31", "192.0.2.0/24", "fd00:1::/32"):  # of the capture
        if version == 6 or ":" not in net:
            writer.insert_network(IPSet([net]), record(rng))
    writer.to_db_file(str(path))
    return str(path)


def widened(data: bytes, bits: int) -> bytes:
    """The database with records of ``bits`` bits in its search tree, instead of 24."""
    marker = data.rfind(MARKER)
    about = maxminddb.open_database(io.BytesIO(data), maxminddb.MODE_FD).metadata()
    assert about.record_size == 24
    tree = b""
    for at in range(0, about.node_count * 6, 6):
        left, right = int.from_bytes(data[at : at + 3], "big"), int.from_bytes(data[at + 3 : at + 6], "big")
        if bits == 32:
            tree += left.to_bytes(4, "big") + right.to_bytes(4, "big")
        else:
            middle = (left >> 24) << 4 | right >> 24
            tree += (left & 0xFFFFFF).to_bytes(3, "big") + bytes([middle]) + (right & 0xFFFFFF).to_bytes(3, "big")
    metadata = data[marker:].replace(b"record_size\xa1\x18", b"record_size\xa1" + bytes([bits]))
    assert metadata != data[marker:]
    return tree + data[about.node_count * 6 : marker] + metadata


def expected(databases: list[Any], address: str | None) -> dict[str, Any]:
    """The fields of an address, by the library."""
    out: dict[str, Any] = {"country": "", "city": "", "asn": 0, "org": ""}
    for one in databases if address is not None else []:
        if ":" in address and one.metadata().ip_version == 4:
            continue
        found = one.get(address) or {}
        city = found.get("city", {}).get("names", {}).get("en", "").encode()[:64].decode(errors="ignore")
        new = {
            "country": found.get("country", {}).get("iso_code", ""),
            "city": city,
            "asn": found.get("autonomous_system_number", 0),
            "org": found.get("autonomous_system_organization", ""),
        }
        out = {name: out[name] or new[name] for name in out}
    return out


class AddressRows(Reader):
    """Rows in memory, (source or None, destination), in blocks of 50."""

    schema = ROWS

    def __init__(self, rows: list[tuple[str | None, str]]) -> None:
        super().__init__("rows")
        self.all = rows

    def blocks(self) -> Iterator[Block]:
        for at in range(0, len(self.all), 50):
            part = self.all[at : at + 50]
            parsed = [ipaddress.ip_address(source) if source else None for source, _ in part]
            wide = [a.packed if a is not None and a.version == 6 else bytes(16) for a in parsed]
            short = [0 if a is None else int(a) if a.version == 4 else fold6(a.packed) for a in parsed]
            columns = [
                b"".join(n.to_bytes(4, "little") for n in short),
                b"".join(wide),
                bytes([a.version if a is not None else 0 for a in parsed]),
                b"".join(int(ipaddress.IPv4Address(d)).to_bytes(4, "little") for _, d in part),
                b"".join(n.to_bytes(4, "little") for n in range(at, at + len(part))),
            ]
            yield Block.wrap(ROWS.layout, len(part), columns)


def addresses(path: str, rng: random.Random, count: int) -> Iterator[str]:
    """Addresses in the networks of a database, and anywhere."""
    nets = [str(net) for net, _ in maxminddb.open_database(path)]
    for _ in range(count):
        if rng.random() < 0.3:
            yield str(
                rng.choice([ipaddress.IPv4Address(rng.getrandbits(32)), ipaddress.IPv6Address(rng.getrandbits(128))])
            )
        else:
            net = ipaddress.ip_network(rng.choice(nets))
            found = net[rng.randrange(net.num_addresses)]
            low = int(found)
            yield str(ipaddress.IPv4Address(low) if low < 1 << 32 else found)


@pytest.mark.parametrize(("bits", "version"), [(24, 6), (28, 6), (32, 6), (28, 4)])
def test_every_row_against_the_library(tmp_path: Path, bits: int, version: int) -> None:
    """Two databases, IPv4 and IPv6 rows, those without an address, all conditions in the input or here."""
    rng = random.Random(bits + version)
    one = database(tmp_path / "one.mmdb", version, bits)
    two = database(tmp_path / "two.mmdb", 4, 99)
    if bits != 24:
        Path(one).write_bytes(widened(Path(one).read_bytes(), bits))
    sources = [
        a if rng.random() < 0.95 and int(ipaddress.ip_address(a)) > 1 else None for a in addresses(one, rng, 400)
    ]
    targets = [a for a in addresses(two, rng, 2000) if ":" not in a and a != "0.0.0.0"]
    rows = list(zip(sources, targets, strict=False))
    assert len(rows) == 400
    libraries = [maxminddb.open_database(one), maxminddb.open_database(two)]
    truth = [(expected(libraries, s), expected(libraries, d), n) for n, (s, d) in enumerate(rows)]
    assert len({t[0]["country"] for t in truth}) >= 4
    assert len({t[0]["city"] for t in truth}) >= 5

    def reader() -> GeoReader:
        return GeoReader(AddressRows(rows), [AddressDatabase(one), AddressDatabase(two)], GEO_FIELDS)

    whole = b"".join(block.buffer(block.layout.index(name)).tobytes() for name in ("dst_city",) for block in reader())
    assert whole == b"".join(t[1]["city"].encode().ljust(64, b"\0") for t in truth)
    conditions = {
        "src_country == DE": lambda s, d, n: s["country"] == "DE",
        "n < 200 and src_asn == 64496": lambda s, d, n: n < 200 and s["asn"] == 64496,
        "n < 20 or dst_city like 'B*'": lambda s, d, n: n < 20 or d["city"].startswith("B"),
        "not (n < 300 and dst_country == FR)": lambda s, d, n: not (n < 300 and d["country"] == "FR"),
        "n >= 390": lambda s, d, n: n >= 390,
    }
    for text, holds in conditions.items():
        at = reader()
        names = ["n", "src_city", "dst_org", "src_asn"]
        found = []
        for block, picks in at.select(compile(text, at.schema), [at.schema.index(name) for name in names]):
            block = block if picks is None else block.take(picks)
            for row in range(block.rows):
                n, city, org, asn = (block.get(at.schema.index(name), row) for name in names)
                found.append((n, city.rstrip(b"\0").decode(), org.rstrip(b"\0").decode(), asn))
        assert found == [(n, s["city"], d["org"], s["asn"]) for s, d, n in truth if holds(s, d, n)]
        assert at.count(compile(text, at.schema)) == len(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two databases, and packets in a log with an index and in a file."""
    folder = tmp_path_factory.mktemp("geo")
    database(folder / "GeoLite2-City.mmdb", 6, 5, "GeoLite2-City")
    database(folder / "GeoLite2-ASN.mmdb", 4, 6, "GeoLite2-ASN")
    run("confluo-capture", "-q", "-r", str(CAMPUS), "-w", "t.ml", "--index", "dst_port", cwd=folder)
    run("confluo-query", "t.ml", "-w", "t.parquet", cwd=folder)
    return folder


BOTH = ("--geo", "GeoLite2-City.mmdb", "--geo", "GeoLite2-ASN.mmdb")


@pytest.mark.parametrize("name", [str(CAMPUS), "t.ml", "t.parquet", "sw1:{}/t.ml", "cursor"])
def test_groups_on_every_input(folder: Path, tmp_path: Path, name: str) -> None:
    libraries = [maxminddb.open_database(folder / f"GeoLite2-{kind}.mmdb") for kind in ("City", "ASN")]
    truth: Counter[tuple[Any, ...]] = Counter()
    rows = run("confluo-query", "t.ml", "dst_port != 53", "-J", "-f", "src_ip,dst_ip,len", cwd=folder).stdout
    for line in rows.splitlines():
        row = json.loads(line)
        source = expected([libraries[0]], row.get("src_ip"))
        target = expected([libraries[1]], row.get("dst_ip"))
        if source["country"]:
            truth[source["country"], target["asn"]] += row["len"]
    assert len(truth) >= 2
    more = ("--cursor", str(tmp_path / "c")) if name == "cursor" else ()
    name = "t.ml" if name == "cursor" else name.format(folder)
    question = ("dst_port != 53 and src_country != ''", "--agg", "sum(len)", "--by", "src_country,dst_asn", "-J")
    found = run("confluo-query", name, *question, *BOTH, *more, cwd=folder, env=env(tmp_path))
    made = [json.loads(line) for line in found.stdout.splitlines()]
    assert {(r.get("src_country", ""), r.get("dst_asn", 0)): r["sum_len"] for r in made} == dict(truth)


def test_commands(folder: Path) -> None:
    """The list of fields, the plan, the fields only if named, flows, convert, and what is refused."""

    def answer(*arguments: str) -> str:
        return run(*arguments, cwd=folder).stdout.decode()

    helped = answer("confluo-query", "t.ml", "--geo", "GeoLite2-City.mmdb", "-f", "help")
    assert "dst_city" in helped
    assert "dst_asn" not in helped
    explained = answer("confluo-query", "t.ml", "dst_port == 22 and src_country == CH", "--explain", *BOTH)
    assert "index" in explained
    plain = answer("confluo-query", "t.ml", "-c", "5", "-J")
    assert answer("confluo-query", "t.ml", "-c", "5", "-J", *BOTH) == plain
    flows = answer("confluo-query", "t.ml", "--flows", "--agg", "count", "--by", "src_country", "-J", *BOTH)
    assert "src_country" in flows
    fields = ("-f", "src_ip,src_country,dst_org", "-J")
    converted = answer("confluo-convert", "t.ml", *fields, *BOTH)
    assert converted == answer("confluo-query", "t.ml", *fields, *BOTH)
    for options, error in (
        (("--geo", "none.mmdb"), "none.mmdb: No such file or directory; --geo takes .mmdb files"),
        (("--geo", "GeoLite2-ASN.mmdb"), "no database has a field 'country'"),
        ((*BOTH, "--engine", "local:2"), "--geo: looks addresses up on this host; leave --engine out"),
    ):
        asked = ("t.ml", "--agg", "count", "--by", "dst_country")
        done = run("confluo-query", *asked, *options, cwd=folder)
        assert (done.returncode, done.stdout) == (2, b"")
        assert error in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1


def test_sql_and_python(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers as confluo-query, on every kind of input; and the fields only where they are named."""
    pytest.importorskip("duckdb", reason="the package duckdb is not installed")
    files = [folder / word for word in BOTH if word != "--geo"]
    for name, variable in env(tmp_path).items():
        monkeypatch.setenv(name, variable)

    def rows(*arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run(*arguments, *BOTH, "-J", cwd=folder).stdout.splitlines()]

    groups = ("--agg", "count, sum(len)", "--by", "src_country,dst_asn")
    found = rows("confluo-query", "t.ml", "dst_port != 53 and dst_city != ''", *groups)
    truth = {(row["src_country"], row["dst_asn"]): (row["count"], row["sum_len"]) for row in found}
    assert len(truth) >= 2
    where = "where dst_port <> 53 and dst_city <> '' group by all"
    for table in ("t.ml", "t.parquet", str(CAMPUS)):
        sql = rows("confluo-sql", f"select src_country, dst_asn, count(*) n, sum(len) b from '{table}' {where}")
        assert {(row["src_country"], row["dst_asn"]): (row["n"], row["b"]) for row in sql} == truth
    copies = rows(
        "confluo-sql", "select count(*) n from 't.ml' a join 't.ml' b using (ts, dst_city) where a.len = b.len"
    )
    assert copies[0]["n"] >= sum(count for count, _ in truth.values())
    assert [name for row in rows("confluo-sql", "select * from 't.ml' limit 1") for name in row][-8:] == list(
        GEO_FIELDS
    )

    for place in (str(folder / "t.ml"), f"sw1:{folder}/t.ml", str(CAMPUS)):
        trace = ct.open(place, geo=files)
        made = trace.aggregate(
            "count, sum(len)", by="src_country,dst_asn", where="dst_port != 53 and dst_city != ''", readable=True
        )
        assert {(r["src_country"], r["dst_asn"]): (r["count"], r["sum_len"]) for r in made.to_dicts()} == truth
        assert trace.count("dst_port != 53 and dst_city != ''") == sum(count for count, _ in truth.values())
        assert "src_city" in trace.schema
        assert "src_city" not in trace.query(limit=1).to_dicts()[0]
        named = trace.query("src_country == CH", fields="ts,src_city", limit=3).to_dicts()
        assert [list(row) for row in named] == [["ts", "src_city"]] * 3
    follower = ct.open(folder / "t.ml", geo=files).follow("src_country == CH", fields=["src_country", "dst_asn"])
    batch = next(iter(follower))
    follower.stop()
    assert {row["src_country"] for row in batch.to_dicts()} == {"CH"}
    with pytest.raises(FormatError, match="No such file"):
        ct.open(folder / "t.ml", geo="none.mmdb")
    refused = run("confluo-sql", "select src_country from 't.ml'", cwd=folder)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"no column 'src_country'; --geo FILE.mmdb has it" in refused.stderr


def looked_up(data: bytes, path: Path) -> int:
    """Look some addresses up in a file with these bytes; the number of records found."""
    path.write_bytes(data)
    rng = random.Random(1)
    rows = [(str(ipaddress.IPv4Address(rng.getrandbits(32))), "10.1.2.3") for _ in range(100)]
    one = AddressDatabase(str(path))
    for _ in GeoReader(AddressRows(rows), [one], GEO_FIELDS):
        pass
    return len(one.tree.offsets) - 1


def test_hostile_files(tmp_path: Path) -> None:
    """Cut, changed and looping files give an error of one line, or values; nothing else, and soon."""
    good = Path(database(tmp_path / "good.mmdb", 4, 3)).read_bytes()
    assert looked_up(good, tmp_path / "x.mmdb") > 3
    about = maxminddb.open_database(tmp_path / "good.mmdb").metadata()
    start, marker = about.node_count * 6 + 16, good.rfind(MARKER)
    loops = {
        "itself": b"\xe1\x41a\x20\x00",  # a map that contains itself
        "wide": b"\xe2\x41a\x20\x00\x41b\x20\x00",  # two of them: 2 ** depth values
        "pointers": b"\x20\x00",
        "deep": b"\x01\x04" * 5000,  # arrays in arrays
        "long": b"\x5f\xff\xff\xff",  # a text of 16 MiB
        "many": b"\x1f\x04\xff\xff\xff" + b"\x00\x07" * 20000,
        "name": b"\xe1\xa1\x01\xa1\x01",
        "type": b"\x00\x09",
    }
    for value in loops.values():
        # The same value wherever an address leads.
        tree = b"".join((about.node_count + 16).to_bytes(3, "big") for _ in range(about.node_count * 2))
        with pytest.raises(FormatError, match="damaged") as caught:
            looked_up(tree + bytes(16) + value + good[marker:], tmp_path / "x.mmdb")
        assert "\n" not in str(caught.value)
    for data in (
        b"",
        b"x",
        good[: marker + 5],
        good[: marker + 20],
        good[marker:],
        good[100:],
        good[:start] + good[marker:],
    ):
        with pytest.raises(FormatError):
            looked_up(data, tmp_path / "x.mmdb")
    rng = random.Random(8)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(rng.choice([1, 5, 50])):
            data[rng.choice([rng.randrange(len(data)), rng.randrange(marker, len(data))])] = rng.randrange(256)
        with contextlib.suppress(FormatError):
            looked_up(bytes(data), tmp_path / "x.mmdb")


def test_rows_without_addresses(tmp_path: Path) -> None:
    one = AddressDatabase(database(tmp_path / "one.mmdb", 4, 1))
    reader = AddressRows([])
    reader.schema = Schema("thing", [Field("n", "u32")])
    with pytest.raises(UsageError, match="have no src_ip and dst_ip"):
        GeoReader(reader, [one], ["dst_city"])
    assert one.numbers(next(AddressRows([("10.1.1.1", "10.1.1.1")] * 2).blocks()), 0, 1, Picks.of(2, [1])) == bytes(
        [0, 0, 0, 0, 1, 0, 0, 0]
    )


@pytest.mark.parametrize(
    "words",
    [["dst_country == DE"], ["--agg", "count", "--by", "dst_country"], ["--agg", "max(src_asn)"], ["-f", "src_city"]],
)
def test_the_option_that_has_the_field_is_named(words: list[str]) -> None:
    done = run("confluo-query", CAMPUS, *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"no field '" in done.stderr
    assert b"; --geo FILE.mmdb has it: see confluo-query(1)" in done.stderr
    assert tuple(PLACES) == PLACE_NAMES
