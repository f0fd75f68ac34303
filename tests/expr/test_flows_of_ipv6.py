"""Flows of IPv6 may leave out what those of IPv4 may."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import confluo_tools as ct

ENDS = [(f"2001:db8::{n}", port) for n in (1, 2, 3) for port in (443, 53124)]
PORTS = [None, "*", 443]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flows") / "a.ml"
    rows = [
        {"ip_version": 6, "src_ip": a, "src_port": p, "dst_ip": b, "dst_port": q, "proto": proto}
        for (a, p), (b, q), proto in itertools.product(ENDS, ENDS, ("tcp", "udp"))
    ]
    with ct.Writer(path, "packet") as writer:
        writer.append(rows)
    return path


def end(address: str, port: int | str | None, bracketed: bool) -> str:
    return f"[{address}]:{port}" if port is not None else f"[{address}]" if bracketed else address


@pytest.mark.parametrize(("source", "target"), list(itertools.product(PORTS, PORTS)))
def test_ports_and_protocol_may_be_left_out(log: Path, source: int | str | None, target: int | str | None) -> None:
    a, b = "2001:db8::1", "2001:db8::2"
    parts = [f"src_ip == {a}", f"dst_ip == {b}"]
    parts += [f"src_port == {source}"] if source == 443 else []
    parts += [f"dst_port == {target}"] if target == 443 else []
    logs = ct.open(log)
    for proto, brackets in itertools.product(("", "/tcp"), itertools.product((True, False), repeat=2)):
        text = f"{end(a, source, brackets[0])}-{end(b, target, brackets[1])}{proto}"
        wanted = " && ".join([*parts, "proto == tcp"] if proto else parts)
        assert logs.count(f"flow == {text}") == logs.count(wanted) > 0, text
        assert logs.count(f"conn == {text} && src_ip == {a}") == logs.count(wanted), text
