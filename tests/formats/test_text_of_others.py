"""Text as other programs write it: delimiters, padding, epochs, nested JSON, Suricata, Zeek, journald, AWS VPC."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from confluo_tools.errors import UsageError
from confluo_tools.formats.detect import PEEK, detect
from confluo_tools.formats.foreign_names import parse_renames
from confluo_tools.formats.text_types import epoch_unit, guess_type
from confluo_tools.inputs.open import open_one

SECOND = 1_709_287_200  # 2024-03-01 10:00:00 UTC
NS = 10**9

EVE = """\
{"timestamp":"2024-03-01T10:00:00.123456+0000","flow_id":1234567890123456,"event_type":"dns","src_ip":"10.0.0.5",\
"src_port":53124,"dest_ip":"10.0.0.1","dest_port":53,"proto":"UDP","dns":{"type":"query","rrname":"example.org"}}
{"timestamp":"2024-03-01T10:00:01.000001+0000","flow_id":1234567890123457,"event_type":"flow","src_ip":"2001:db8::5",\
"src_port":40000,"dest_ip":"2001:db8::1","dest_port":443,"proto":"TCP","flow":{"pkts_toserver":10,\
"start":"2024-03-01T11:59:00.000000+0200","alerted":false},"tcp":{"tcp_flags":"1b","ack":true}}
{"timestamp":"2024-03-01T10:00:02.500000+0000","flow_id":3,"event_type":"alert","src_ip":"fe80::1","src_port":0,\
"dest_ip":"ff02::1","dest_port":0,"proto":"IPv6-ICMP","alert":{"signature":"a test","severity":2},\
"metadata":{"flowbits":["x","y"]}}
"""
CONN = """\
{"ts":1709287200.123456,"uid":"C1","id.orig_h":"10.0.0.5","id.orig_p":53124,"proto":"udp","local_orig":true}
{"ts":1709287201.000001,"uid":"C2","id.orig_h":"fe80::5","id.orig_p":1,"proto":"tcp","tunnel_parents":["Cx","Cy"]}
"""
JOURNAL = """\
{"__CURSOR":"s=a;i=1","__REALTIME_TIMESTAMP":"1709287200123456","PRIORITY":"6","_PID":"100","MESSAGE":"begins"}
{"__CURSOR":"s=a;i=2","__REALTIME_TIMESTAMP":"1709287200123457","PRIORITY":"4","MESSAGE":[72,105,255]}
"""
VPC = """\
version account-id interface-id srcaddr dstaddr srcport dstport protocol packets bytes start end action log-status
2 123456789012 eni-0a1b2c3d4e5f60718 10.0.0.5 10.0.0.1 20641 22 6 20 4249 1709287200 1709287260 ACCEPT OK
2 123456789012 eni-0a1b2c3d4e5f60718 - - - - - - - 1709287260 1709287320 - NODATA
"""
VPC_CUSTOM = """\
pkt-srcaddr pkt-dstaddr tcp-flags bytes start flow-direction
10.0.0.5 10.0.0.1 19 4249 1709287200 ingress
"""


def read(
    tmp_path: Path, data: str | bytes, rename: dict[str, str] | None = None
) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Types and values by field, of a file whose format is found by itself."""
    path = tmp_path / "in"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    with open_one(str(path), rename=rename) as reader:
        blocks = list(reader)
    found: dict[str, list[Any]] = {}
    for i, column in enumerate(reader.schema.columns):
        values = [block.get(i, row) for block in blocks for row in range(block.rows)]
        found[column.name] = [v.rstrip(b"\0").decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
    return {f.name: f.type.text for f in reader.schema.fields}, found


def rows_of_duckdb(path: Path, how: str) -> list[tuple[Any, ...]]:
    return duckdb.sql(f"select * from {how}('{path}')").fetchall()


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_delimiters_as_duckdb_reads_them(mark: str, bom: bytes, tmp_path: Path) -> None:
    lines = [["name", "n", "x"], ['"a,b;c"', "1", "2.5"], ["d", "-7", "1e3"], ['"say ""so"""', "0", "0.25"]]
    data = bom + "".join(mark.join(line) + "\n" for line in lines).encode()
    types, found = read(tmp_path, data)
    assert types == {"name": "text(16)", "n": "i64", "x": "f64"}
    assert list(zip(*found.values(), strict=True)) == rows_of_duckdb(tmp_path / "in", "read_csv")


def test_padded_numbers_times_and_addresses(tmp_path: Path) -> None:
    data = "at,n,rate,src_ip,text\n"
    data += "2024-03-01 10:00:00+0000,    12,   0.500, 10.0.0.1 ,  as given\n2024-03-01 12:00:00+02,     ,  7,   ,\n"
    types, found = read(tmp_path, data)
    assert (types["at"], types["n"], types["rate"], types["src_ip"]) == ("time", "i64", "f64", "ip")
    assert found["at"] == [SECOND * NS] * 2
    assert (found["n"], found["rate"], found["text"]) == ([12, 0], [0.5, 7.0], ["  as given", ""])


@pytest.mark.parametrize("offset", ["Z", "+00:00", "+0000", "+00", "-0000"])
def test_offsets(offset: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"ts,n\n2024-03-01T10:00:00.5{offset},1\n")[1]["ts"] == [SECOND * NS + NS // 2]


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_the_unit_of_an_epoch_is_that_of_its_column(unit: str, per_second: int, tmp_path: Path) -> None:
    """Also for values that alone would look like a larger unit; negative ones are before 1970."""
    values = [SECOND * per_second, 5 * per_second, 0, -per_second, SECOND * per_second + per_second // 2]
    assert epoch_unit([str(v) for v in values]) == unit
    types, found = read(tmp_path, "ts,n\n" + "".join(f"{v},1\n" for v in values))
    assert types["ts"] == "time"
    assert found["ts"] == [v * (NS // per_second) for v in values]


def test_fractions_of_epochs(tmp_path: Path) -> None:
    assert read(tmp_path, "ts,n\n1709287200123.75,1\n")[1]["ts"] == [1709287200_123_750_000]
    assert read(tmp_path, "ts,n\n1709287200.123456789,1\n")[1]["ts"] == [1709287200_123_456_789]


def test_numbers_are_times_only_by_name_and_size() -> None:
    assert guess_type(["1709287200", "1709287201"], "start") == "time"
    assert guess_type(["1709287200123"], "created_timestamp") == "time"
    assert guess_type(["1709287200"], "bytes") == "i64"
    assert guess_type(["1709287200", "12"], "start") == "i64"


def test_nested_objects_are_fields_with_points(tmp_path: Path) -> None:
    rows = [
        {"a": 1, "b": {"c": 2, "d": {"e": "x"}}, "list": ["p", "q"], "o": [{"k": 1}, {"k": 2}], "empty": {}},
        {"b": {"d": {"e": None}, "c": -3}, "a": None, "list": []},
    ]
    types, found = read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert types == {"a": "i64", "b_c": "i64", "b_d_e": "text(16)", "list": "text(16)", "o": "text(64)"}
    assert (found["a"], found["b_c"], found["b_d_e"]) == ([1, 0], [2, -3], ["x", ""])
    assert (found["list"], found["o"]) == (["p,q", ""], ['{"k": 1},{"k": 2}', ""])
    sql = f"select b.c, b.d.e from read_json('{tmp_path / 'in'}')"
    assert duckdb.sql(sql).fetchall() == [(2, "x"), (-3, None)]
    assert read(tmp_path, json.dumps(rows))[1] == found  # an array of the same objects


def test_deep_and_long_keys_do_no_harm(tmp_path: Path) -> None:
    deep = '{"k":' * 500 + "1" + "}" * 500
    long = json.dumps({"x" * 2000: {"y": 1}, "n": {"z" * 1500: 2}})
    _, found = read(tmp_path, '{"a":1}\n{"a":2,"d":' + deep + "}\n" + long[:-1] + ',"a":3}\n')
    assert found["a"] == [1, 2, 3]


def test_eve_of_suricata(tmp_path: Path) -> None:
    types, found = read(tmp_path, EVE, {"timestamp": "ts", "dest_ip": "dst_ip", "dest_port": "dst_port"})
    assert [types[n] for n in ("ts", "dst_ip", "dst_port", "proto", "tcp_ack")] == ["time", "ip", "u16", "enum", "i64"]
    assert found["ts"] == [SECOND * NS + 123456000, SECOND * NS + NS + 1000, SECOND * NS + 5 * NS // 2]
    assert found["flow_start"] == [0, (SECOND - 60) * NS, 0]
    assert (found["proto"], found["dst_port"]) == ([17, 6, 58], [53, 443, 0])
    assert (found["dns_rrname"], found["alert_severity"]) == (["example.org", "", ""], [0, 0, 2])
    assert found["metadata_flowbits"] == ["", "", "x,y"]


def test_json_of_zeek_and_journald(tmp_path: Path) -> None:
    _, found = read(tmp_path, CONN)
    assert found["ts"] == [SECOND * NS + 123456000, SECOND * NS + NS + 1000]
    assert (found["id_orig_p"], found["tunnel_parents"], found["proto"]) == ([53124, 1], ["", "Cx,Cy"], [17, 6])
    types, found = read(tmp_path, JOURNAL)
    assert types["__realtime_timestamp"] == "time"
    assert found["__realtime_timestamp"] == [SECOND * NS + 123456000, SECOND * NS + 123457000]
    assert (found["_pid"], found["message"]) == ([100, 0], ["begins", "72,105,255"])


@pytest.mark.parametrize("header", [True, False])
def test_flow_logs_of_vpc(header: bool, tmp_path: Path) -> None:
    types, found = read(tmp_path, VPC if header else VPC.split("\n", 1)[1], {"srcaddr": "src_ip", "protocol": "proto"})
    assert (types["src_ip"], types["start"], types["proto"]) == ("ip", "time", "enum")
    assert (found["start"], found["end"][0]) == ([SECOND * NS, (SECOND + 60) * NS], (SECOND + 60) * NS)
    assert (found["bytes"], found["log_status"]) == ([4249, 0], ["OK", "NODATA"])
    assert (found["src_ip"], found["proto"]) == ([0x0A000005, 0], [6, 0])


def test_flow_logs_of_vpc_with_chosen_fields(tmp_path: Path) -> None:
    types, found = read(tmp_path, VPC_CUSTOM)
    assert list(types) == ["pkt_srcaddr", "pkt_dstaddr", "tcp_flags", "bytes", "start", "flow_direction"]
    assert (found["tcp_flags"], found["start"]) == ([19], [SECOND * NS])


def test_nothing_found_by_nfdump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = "Summary\nflows,bytes,packets,avg_bps,avg_pps,avg_bpp\n0,0,0,0,0,0\n"
    assert read(tmp_path, "ts,te,td,sa,da\nNo matching flows\n" + rest)[1]["ts"] == []
    assert "line" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "format"), [("version account-id\n", "csv"), ("two words\n", ""), ("1\t2\n", ""), ("a;b\n", "csv")]
)
def test_what_is_a_table(head: str, format: str) -> None:
    assert detect(head.encode()[:PEEK]) == format


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a", "'a' is not OLD=NEW"),
        ("a=", "'a=' is not OLD=NEW"),
        ("a=B c", "'B c' is not the name of a field"),
        ("a=x,a=y", "'a' gets two names"),
        ("a=x,b=x", "two fields would have the name 'x'"),
        (" , ", "is empty"),
    ],
)
def test_renames_that_are_refused(given: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_renames(given)


@pytest.mark.parametrize("suffix", ["csv", "ndjson", "json", "arrow", "parquet", "arrows"])
def test_renamed_in_each_format(suffix: str, tmp_path: Path) -> None:
    """Fields with our names get our types; an unknown name and one that is taken are errors."""
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    path = tmp_path / f"in.{suffix}"
    table = pa.table({"sa": ["10.0.0.1", "::1"], "id.orig_p": [80, 443], "n": [1, 2]})
    if suffix == "csv":
        path.write_text("sa,id.orig_p,n\n10.0.0.1,80,1\n::1,443,2\n")
    elif suffix in ("ndjson", "json"):
        lines = [json.dumps(row) for row in table.to_pylist()]
        path.write_text("\n".join(lines) if suffix == "ndjson" else f"[{','.join(lines)}]")
    elif suffix == "parquet":
        pq.write_table(table, path)
    elif suffix == "arrow":
        feather.write_feather(table, path)
    else:
        with pa.OSFile(os.fspath(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    with open_one(str(path), rename={"sa": "src_ip", "id.orig_p": "src_port"}) as reader:
        types = {f.name: f.type.text for f in reader.schema.fields}
        (block,) = list(reader)
    assert types == {"src_ip": "ip", "src_port": "u16", "n": "i64"}
    assert [block.get(reader.schema.index("src_port"), row) for row in range(2)] == [80, 443]
    for rename, says in (({"nope": "x"}, "has no field 'nope'"), ({"sa": "n"}, "two fields would have the name 'n'")):
        with pytest.raises(UsageError, match=says):
            open_one(str(path), rename=rename)
