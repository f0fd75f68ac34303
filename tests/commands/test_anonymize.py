"""--anonymize of confluo-convert and confluo-query: one key, the same addresses everywhere, nothing else goes out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import make_capture
import make_links
from confluo_tools.formats.anonymize import AnonymizeChoice, AnonymousRecords
from confluo_tools.schema import Field, Schema, builtin
from running import CAMPUS, run

KEY = bytes(range(7, 39))
SECRETS = (b"10.1.0.12", bytes([10, 1, 0, 12]), bytes([12, 0, 1, 10]), b"campus", b"vlan.ml")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.file"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def everything(path: Path) -> bytes:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return b"".join(file.read_bytes() for file in files)


def test_every_output_has_the_same_addresses_and_no_history(tmp_path: Path, key: Path) -> None:
    asked = ("-f", "ts,src_ip,dst_ip,src_port,eth_src,flow_hash,len", "-T")
    hides = ("--anonymize", key)
    chosen = ("confluo-query", CAMPUS, "host 10.1.0.12", *hides)
    wanted = run(*chosen, *asked).stdout
    assert wanted.count(b"\n") > 2000
    for name in ("x.pcap", "x.pcapng", "x.ml", "x.arrows", "x.parquet", "x.ndjson"):
        done = run(*chosen, "-w", tmp_path / name)
        assert (done.returncode, done.stderr) == (0, b""), name
        assert run("confluo-query", tmp_path / name, *asked).stdout == wanted, name
        data = everything(tmp_path / name)
        assert not [secret for secret in SECRETS if secret in data], name


def test_selected_fields_and_groups_are_hidden_too(tmp_path: Path, key: Path) -> None:
    (tmp_path / "x.pcap").write_bytes(run("confluo-convert", CAMPUS, "--anonymize", key, "-o", "pcap").stdout)
    for more in (("-f", "flow_hash,dst_ip"), ("--agg", "count, max(len)", "--by", "src_ip, dst_port"), ("--flows",)):
        hidden = run("confluo-query", CAMPUS, *more, "-T", "--anonymize", key)
        assert (hidden.returncode, hidden.stderr) == (0, b"")
        plain = run("confluo-query", tmp_path / "x.pcap", *more, "-T")
        assert sorted(hidden.stdout.splitlines()) == sorted(plain.stdout.splitlines()), more


def test_fields_of_any_schema(key: Path) -> None:
    del key
    node = AnonymousRecords(builtin("path"), AnonymizeChoice(KEY, frozenset(), False))
    assert node.left_out == ["path6"]
    probe = AnonymousRecords(builtin("probe"), AnonymizeChoice(KEY, frozenset(), False))
    assert {"src", "dst", "src_pod", "detail"} <= set(probe.left_out)
    assert "history" in AnonymousRecords(builtin("conn"), AnonymizeChoice(KEY, frozenset(), False)).schema
    fields = [Field("hop", "list(ipv4, 3)"), Field("way", "list(mac, 2)"), Field("name", "text(8)"), Field("n", "ip")]
    schema = Schema("other", fields)
    rows = AnonymousRecords(schema, AnonymizeChoice(KEY, frozenset({"text"}), False))
    from confluo_tools.core.block.block import Block

    columns = [struct.pack("3I", 5, 0, 6), struct.pack("2Q", 9, 0), b"alice\0\0\0", struct.pack("I", 5), bytes(16)]
    made = rows.block(Block.wrap(schema.layout, 1, columns))
    hop = struct.unpack("3I", made.buffer(0))
    assert (hop[1], struct.unpack("2Q", made.buffer(1))[1]) == (0, 0)
    assert hop[0] not in (0, 5)
    assert struct.unpack("I", made.buffer(3))[0] == hop[0]
    assert bytes(made.buffer(2)) == b"alice\0\0\0"


def test_what_cannot_be_hidden_is_left_out_and_counted(tmp_path: Path, key: Path) -> None:
    first = make_capture.section() + make_capture.interface(link=239, resolution=9)
    first += make_capture.enhanced(5, make_links.frames(239)[0])
    first += make_capture.interface(link=1, resolution=9)
    second = make_capture.enhanced(6, make_links.frames(1)[0], iface=1)
    (tmp_path / "two.pcapng").write_bytes(first + second)
    done = run("confluo-convert", tmp_path / "two.pcapng", "--anonymize", key, "-w", tmp_path / "x.pcap")
    assert done.returncode == 2
    assert b"1 packets are left out: addresses may be anywhere in frames of their link type (NFLOG)" in done.stderr
    assert run("confluo-query", tmp_path / "x.pcap", "--count").stdout == b"1\n"


def test_choices(tmp_path: Path, key: Path) -> None:
    packet = make_links.ethernet((make_links.IP, make_links.ip4(6, make_links.tcp())))
    path = make_links.write(tmp_path / "one.pcap", [packet])
    hide = ("confluo-convert", path, "--anonymize", key, "-o", "pcap")
    kept = run(*hide, "--anonymize-keep", "payload,oui").stdout
    assert b"tcp!" in kept
    assert b"tcp!" not in run(*hide).stdout
    assert kept[40:43] == kept[46:49] == make_links.MAC_A[:3]
    ports = run("confluo-convert", "-", "-J", "-f", "src_port", stdin=run(*hide, "--anonymize-ports").stdout).stdout
    assert json.loads(ports)["src_port"] != 40000


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (KEY, 0o644, "other users may read this key; chmod 600 "),
        (KEY[:31], 0o600, "is not a key of 32 bytes or 64 hexadecimal digits; make one: "),
        (b"", 0o600, "is not a key of 32 bytes"),
        (b"zz" * 32, 0o600, "is not a key of 32 bytes"),
        (None, 0, "No such file or directory; make one: "),
    ],
)
def test_bad_keys(tmp_path: Path, content: bytes | None, mode: int, said: str) -> None:
    path = tmp_path / "bad"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    done = run("confluo-convert", CAMPUS, "--anonymize", path, "-w", tmp_path / "x.ml")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"confluo-convert: {path}: {said}")
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / "x.ml").exists()


def test_hexadecimal_keys_and_wrong_use(tmp_path: Path, key: Path) -> None:
    word = tmp_path / "hex"
    word.write_text(KEY.hex() + "\n")
    word.chmod(0o600)
    first = ("confluo-query", CAMPUS, "-c", "3", "-T", "--anonymize")
    assert run(*first, word).stdout == run(*first, key).stdout
    done = run("confluo-query", CAMPUS, "--anonymize-ports")
    assert (done.returncode, done.stderr) == (
        2,
        b"confluo-query: --anonymize-ports: says how to anonymise; add --anonymize KEY\n",
    )
    done = run("confluo-convert", CAMPUS, "--anonymize", key, "--anonymize-keep", "vlan", "-T")
    assert b"--anonymize-keep: unknown word 'vlan'; use mac, oui, payload or text" in done.stderr
    done = run("confluo-query", CAMPUS, "--agg", "count", "--by", "1s", "-o", "svg", "--anonymize", key)
    assert (done.returncode, b"--anonymize: is for records" in done.stderr) == (2, True)
