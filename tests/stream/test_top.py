"""confluo-stream service top: exact where keys fit, within its error where they do not, however the input is cut."""

from __future__ import annotations

import fcntl
import json
import subprocess
import termios
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.errors import UsageError
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.schema import builtin
from confluo_tools.stream.services import top
from confluo_tools.stream.services.top import TopService
from running import BIN, CAMPUS, environment, lines, popen, run

PACKETS = builtin("packet").project(["ts", "len", "src_port", "src_ip"])
KEPT, PIECE, WINDOW = 3, 8, 100
Packet = tuple[int, int, int]  # time, port, bytes


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "PIECE", PIECE)


def rows(packets: Sequence[Packet], cuts: Sequence[int], rank: str, window: int = WINDOW) -> list[dict[str, Any]]:
    """What the service reports when the packets come in blocks that end at ``cuts``."""
    service = TopService(PACKETS, "src_port", rank, most=100, window=window, lateness=0, kept=KEPT)
    out = []
    places = sorted({0, len(packets), *(c % (len(packets) + 1) for c in cuts)})
    for start, end in pairwise(places):
        part = [{"ts": t, "src_port": port, "len": size} for t, port, size in packets[start:end]]
        service.take(block_of_rows(PACKETS, part), None)
        out += list(service.results())
    service.finish(True)
    out += list(service.results())
    assert service.late == 0
    return [{n: b.get(i, r) for i, n in enumerate(b.layout.names)} for b in out for r in range(b.rows)]


traffic = st.lists(
    st.tuples(st.integers(0, 300), st.sampled_from((1, 1, 1, 1, 2, 2, *range(3, 30))), st.integers(1, 1000)),
    max_size=80,
).map(sorted)


@given(traffic, st.lists(st.integers(0, 80), max_size=5), st.sampled_from(["bytes", "packets"]))
def test_numbers_are_exact_or_within_the_error(packets: list[Packet], cuts: list[int], rank: str) -> None:
    found = rows(packets, cuts, rank)
    assert found == rows(packets, [], rank)
    for start in {t // WINDOW * WINDOW for t, _, _ in packets}:
        weight: Counter[int] = Counter()
        total: Counter[int] = Counter()
        count = 0
        for t, port, size in packets:
            if start <= t < start + WINDOW:
                count += 1
                total[port] += size if rank == "bytes" else 1
                weight[port] += 1
        mine = [r for r in found if r["ts"] == start]
        error = mine[0]["error"]
        assert [r["rank"] for r in mine] == list(range(1, len(mine) + 1))
        assert [r[rank] for r in mine] == sorted((r[rank] for r in mine), reverse=True)
        if len(total) <= 2 * KEPT:
            assert error == 0
        if error == 0:
            assert {r["src_port"]: r[rank] for r in mine} == total
        for r in mine:
            assert r[rank] <= total[r["src_port"]] <= r[rank] + error
            assert r["share"] == pytest.approx(r[rank] / total.total())
        missing = set(total) - {r["src_port"] for r in mine}
        assert all(total[port] <= error for port in missing)
        assert len(mine) <= 2 * KEPT + PIECE


def test_many_keys_have_an_error() -> None:
    """A large key among a thousand small ones: found, with almost all of its bytes."""
    packets = [(0, 1 if i % 2 else 2 + i, 100) for i in range(2000)]
    found = rows(packets, [], "bytes")
    assert (found[0]["src_port"], found[0]["bytes"]) == (1, 100_000)
    assert 0 < found[0]["error"] < 100_000


def test_bytes_by_address_are_those_of_tshark() -> None:
    command = ["tshark", "-n", "-r", str(CAMPUS), "-T", "fields", "-E", "occurrence=f"]
    command += ["-e", "frame.len", "-e", "ip.src", "-e", "ipv6.src"]
    size: Counter[str] = Counter()
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        length, four, six = line.split("\t")
        if four or six:
            size[four or six] += int(length)
    done = run("confluo-stream", "service", "top", str(CAMPUS), "ip or ip6", "--window", "0", "--top", "1000", "-J")
    found = {row["src_ip"]: row["bytes"] for row in map(json.loads, lines(done))}
    assert found == size
    done = run(
        "confluo-stream", "service", "top", str(CAMPUS), "--window", "0", "--top", "3", "-J", "--rank", "packets"
    )
    assert [row["rank"] for row in map(json.loads, lines(done))] == [1, 2, 3]


def test_a_slow_pipe_is_not_late() -> None:
    """Without --follow the clock ends no window, however long a pipe of old packets is silent."""
    stream = run("confluo-query", str(CAMPUS), "-T", "-f", "ts,len,ip_version,src_ip").stdout
    words = ["service", "top", "-", "--window", "1m", "--lateness", "0s", "--top", "3", "-J"]
    expected = lines(run("confluo-stream", *words, stdin=stream))
    service = popen([BIN / "confluo-stream", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    assert service.stdin is not None
    service.stdin.write(stream[: len(stream) // 2])
    service.stdin.flush()
    end = time.monotonic() + 30
    while unread(service.stdin.fileno()):
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.2)  # it may not end a window now
    out, _ = service.communicate(stream[len(stream) // 2 :], timeout=60)
    assert out.decode().splitlines() == expected


def unread(pipe: int) -> int:
    """Bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), "little")


def test_wrong_keys_are_an_error() -> None:
    with pytest.raises(UsageError):
        TopService(PACKETS, "nothing", "bytes", most=1, window=0, lateness=0)
    done = run("confluo-stream", "service", "top", str(CAMPUS), "--rank", "flows")
    assert done.returncode == 2
    assert done.stderr == b"confluo-stream service top: --rank: not 'flows'; there are bytes, packets\n"
