"""`in @FILE` and -F: the same rows as with the values in the expression, held against ipaddress."""

from __future__ import annotations

import ipaddress
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from confluo_tools.errors import ConfluoError
from confluo_tools.expr import ExprError, compile, leaves, list_file, unparse
from confluo_tools.expr.list_file import read_list
from confluo_tools.remote.request import QueryRequest
from confluo_tools.schema import builtin
from running import CAMPUS, lines, run

PACKET = builtin("packet")
FOUR = st.builds(
    lambda a, n: str(ipaddress.ip_network((a, n), strict=False)), st.integers(0, 2**32 - 1), st.integers(4, 32)
)
SIX = st.builds(
    lambda a, n: str(ipaddress.ip_network((a, n), strict=False)), st.integers(1, 2**128 - 1), st.integers(9, 128)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(FOUR, SIX), min_size=1, max_size=40), st.sampled_from(["src_ip", "host", "not dst_ip"]))
def test_a_file_is_a_set(tmp_path: Path, values: list[str], field: str) -> None:
    path = tmp_path / "list"
    path.write_text("# a remark\n\n" + "\n".join(f"  {v} # why" for v in values) + "\n")
    both = [f'{field} in @"{path}"', f"{field} in {{{', '.join(values)}}}"]
    one, other = (compile(text, PACKET, lists=read_list) for text in both)
    assert one.tree == other.tree
    assert compile(unparse(one.syntax), PACKET, lists=read_list).tree == one.tree


def test_many_networks_of_both_versions(tmp_path: Path) -> None:
    """Held against ipaddress, over all packets of a capture."""
    dice = random.Random(7)
    done = run("confluo-query", str(CAMPUS), "-f", "src_ip", "-T", "--no-header")
    seen = lines(done)
    known = sorted({s for s in seen if s})
    nets = [ipaddress.ip_network(f"{s}/{dice.randint(28, 32)}", strict=False) for s in known if ":" not in s][::3]
    nets += [ipaddress.ip_network(f"{s}/{dice.randint(112, 128)}", strict=False) for s in known if ":" in s][::3]
    nets += [ipaddress.ip_network((dice.getrandbits(32), dice.randint(18, 28)), strict=False) for _ in range(2000)]
    nets += [ipaddress.ip_network((dice.getrandbits(128), dice.randint(30, 128)), strict=False) for _ in range(2000)]
    path = tmp_path / "nets.txt"
    path.write_text("\n".join(map(str, nets)))
    inside = {s: any(ipaddress.ip_address(s) in net for net in nets) for s in known}
    expected = sum(inside.get(s, False) for s in seen)
    assert 0 < expected < len(seen)
    assert int(run("confluo-query", str(CAMPUS), f"src_ip in @{path}", "--count").stdout) == expected
    assert int(run("confluo-query", str(CAMPUS), f"src_ip not in @{path}", "--count").stdout) == len(seen) - expected
    kinds = {type(t) for t in leaves.tests(compile(f"src_ip in @{path}", PACKET, lists=read_list).tree)}
    assert {leaves.InRanges, leaves.InByteRanges} <= kinds


def test_numbers_and_names(tmp_path: Path) -> None:
    path = tmp_path / "ports"
    path.write_bytes(b"\xef\xbb\xbf80\r\n443 ; secure\r\nhttps\r\n1000-2000\r\n")
    one = compile(f"port in @{path}", PACKET, lists=read_list)
    assert one.tree == compile("port in {80, 443, https, 1000-2000}", PACKET).tree


def test_a_pipe_is_read_once() -> None:
    read, write = os.pipe()
    os.write(write, b"10.0.0.0/8\n")
    os.close(write)
    text = f"src_ip in @/dev/fd/{read}"
    first = compile(text, PACKET, lists=read_list)
    assert compile(text, PACKET, lists=read_list).tree == first.tree == compile("src_ip in 10.0.0.0/8", PACKET).tree
    os.close(read)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("10.0.0.1\n\n10.0.0.256\n", "{path}, line 3: '10.0.0.256' is not an address for src_ip; write e.g. 10.1.2.3,"),
        ("10.0.0.1\n10.0.0.2 b.example\n", "{path}, line 2: '10.0.0.2 b.example' is not an address"),
        ("# nothing\n", "{path}: there is no value in it; write one a line"),
        (None, "{path}: No such file or directory"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, data: str | None, error: str) -> None:
    path = tmp_path / "bad.txt"
    if data is not None:
        path.write_text(data)
    done = run("confluo-query", str(CAMPUS), f"src_ip in @{path}", "--count")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("confluo-query: " + error.format(path=path))
    assert len(done.stderr.splitlines()) == 1


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long"
    path.write_text("1\n" * 11)
    monkeypatch.setattr(list_file, "MAX_VALUES", 10)
    with pytest.raises(ConfluoError, match="11 values; 10 are possible; put the list into several files"):
        read_list(str(path))
    monkeypatch.setattr(list_file, "MAX_BYTES", 1 << 20)
    path.write_bytes(b"1\n" * (1 << 19) + b"1")
    with pytest.raises(ConfluoError, match="more than 1 MiB"):
        read_list(str(path))


def test_another_host_gets_the_values(tmp_path: Path) -> None:
    path = tmp_path / "nets"
    path.write_text("10.0.0.0/8\n192.0.2.1\n")
    text = f"not (src_ip in @{path} or port 80) and len > 9"
    sent = QueryRequest(text).message()["expr"]
    assert "@" not in sent
    assert compile(sent, PACKET).tree == compile(text, PACKET, lists=read_list).tree
    with pytest.raises(ExprError, match="values cannot be read from a file here"):
        compile(text, PACKET)
    path.write_text("\n".join(f"10.{i >> 8}.{i & 255}.0/24" for i in range(9000)))
    with pytest.raises(ConfluoError, match="longer than 65,536 characters; another host takes short lists only"):
        QueryRequest(text).message()


def test_an_expression_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "web"
    path.write_text("# the web\nport 80   # plain\n  or port 443\n")
    counts = [run("confluo-query", "-F", str(path), str(CAMPUS), "--count").stdout]
    counts.append(run("confluo-query", str(CAMPUS), "port 80 or port 443", "--count").stdout)
    assert counts[0] == counts[1]
    path.write_text("port 80 or\nprot 443")
    done = run("confluo-query", "-F", str(path), str(CAMPUS), "--count")
    assert b"expression, column 17: '443' after a condition" in done.stderr
    done = run("confluo-query", "-F", str(path), "-e", "tcp", str(CAMPUS), "--count")
    assert (done.returncode, done.stderr) == (2, b"confluo-query: -e and -F exclude each other; leave one out\n")
    assert run("confluo-query", "-F", f"{path}.no", str(CAMPUS)).returncode == 2
