"""Servers that lie, and a real one over ssh: what a client believes, and what it shows."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import __version__, multilog
from confluo_tools.errors import ConfluoError
from confluo_tools.expr import compile as compile_expr
from confluo_tools.expr import parse_aggregates
from confluo_tools.inputs.logs import LogPlace, open_logs
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.remote import frame_codec
from confluo_tools.remote import reader as remote_reader
from confluo_tools.remote.address import Address
from confluo_tools.remote.connect import Connection, RemoteShell
from confluo_tools.remote.reader import RemoteReader
from confluo_tools.remote.request import QueryRequest
from confluo_tools.remote.server import QueryServer
from confluo_tools.remote.snapshot_coordinator import SnapshotCoordinator
from frames_lab import HELLO, SECOND, freeze, frozen, opened, query
from log_rows import SIGNED, signed_block
from remote_lab import env, ssh_server
from running import BIN, run


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> multilog.Log:
    made = multilog.create(tmp_path_factory.mktemp("served") / "a.ml", SIGNED)
    with made.writer() as writer:
        writer.append(signed_block(1, 0, 3000))
    return made


@pytest.fixture(autouse=True)
def _no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueryServer, "_look", lambda self: None)  # it would end the tests


# ---------------------------------------------------------------- the client and its server


def says(folder: Path, data: bytes, later: bytes = b"", then: str = "") -> RemoteShell:
    """A remote shell with a server that sends this for any request; and the rest after a FREEZE."""
    (folder / "said").write_bytes(data)
    (folder / "later").write_bytes(later)
    until = len(frame_codec.hello(__version__) + opened("/a.ml") + freeze(1))
    wait = f"head -c {until} >/dev/null; cat {folder}/later" if later else ""
    (folder / "says").write_text(f"#!/bin/sh\ncat {folder}/said\n{wait}\n{then}\n")
    (folder / "says").chmod(0o755)
    return RemoteShell(str(folder / "says"), "x", 10.0)


def recorded(log: multilog.Log, **request: Any) -> bytes:
    """What our server says to a question."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(HELLO + query(log.path, **request))
        given.seek(0)
        QueryServer(given.fileno(), said.fileno()).run()
        said.seek(0)
        return said.read()


def ask(shell: RemoteShell, request: QueryRequest) -> int:
    peer = Connection(Address("h", "/a.ml", "h"), shell)
    with RemoteReader(peer, request) as reader:
        reader.ask()
        reader.ready(10)
        expr = compile_expr("", reader.schema)
        if request.counted:
            return reader.count(expr)
        if request.agg is not None:
            question = Aggregation(SIGNED, parse_aggregates(request.agg, SIGNED), [])
            return reader.fold(expr, None, question.rollup)[1]
        return sum(block.rows for block, _ in reader.select(expr))


REQUESTS = [QueryRequest("seq < 20"), QueryRequest(counted=True), QueryRequest(agg="count, p50(seq), distinct(seq)")]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_answer(log: multilog.Log, data: st.DataObject) -> None:
    """Any bytes changed, cut off, doubled: rows, or an error of ours that names the host; never anything else."""
    request = data.draw(st.sampled_from(REQUESTS))
    said = bytearray(recorded(log, **request.message()))
    for _ in range(data.draw(st.integers(0, 3))):
        said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(said)))
    match data.draw(st.sampled_from(["whole", "cut", "doubled", "padded"])):
        case "cut":
            del said[cut:]
        case "doubled":
            said[cut:cut] = said[max(cut - 50, 0) : cut]
        case "padded":
            said[cut:cut] = data.draw(st.binary(max_size=20))
    with tempfile.TemporaryDirectory() as folder:
        try:
            ask(says(Path(folder), bytes(said)), request)
        except ConfluoError as e:
            assert e.where.startswith("h") or not e.where  # noqa: PT017
            assert "\n" not in str(e)  # noqa: PT017


def meta(**more: Any) -> bytes:
    return frame_codec.frame(frame_codec.META, {"schema": SIGNED.as_dict(), "uuid": "", "metadata": {}, **more})


@pytest.mark.parametrize("firsts", [[-1], [True], ["1"], [1 << 48], [0] * 65537, "7", 7, {"0": 1}])
def test_first_rows_that_are_none(tmp_path: Path, firsts: Any) -> None:
    said = HELLO + meta(kept=firsts) + frame_codec.frame(frame_codec.END, {"found": 0, "rows": 0})
    with pytest.raises(ConfluoError, match="h: protocol error: "):
        ask(says(tmp_path, said, then="cat >/dev/null"), QueryRequest(counted=True, kept=True))
    assert ask(says(tmp_path, said, then="cat >/dev/null"), QueryRequest(counted=True)) == 0  # it was not asked for


def batch(size: int) -> bytes:
    """The head of an Arrow record batch that claims a body of this size."""
    from confluo_tools.formats import arrow_meta

    places = [(0, 4), (64, 8), (128, 8)]
    whole = arrow_meta.batch_message(SIGNED, 1, places, 192)
    return whole.replace(struct.pack("<q", 192), struct.pack("<q", size))


def stream(*pieces: bytes) -> bytes:
    from confluo_tools.formats import arrow_meta

    first = arrow_meta.schema_message(SIGNED, {})
    return b"".join(frame_codec.head(frame_codec.DATA, len(p)) + p for p in (first, *pieces))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"", "h: cannot be reached: "),
        (b"confluo-serve 7 9.9\n", "h: speaks protocol 7 (confluo-tools 9.9), this program 1 ("),
        (b"\x1b[2J" * 50, "instead of a greeting"),
        (HELLO, "h: the connection was lost"),
        (HELLO + b"\xff" * 8, "h: protocol error: invalid frame header"),
        (HELLO + frame_codec.head(frame_codec.META, 1 << 25), "a frame of 33554432 bytes is too long"),
        (HELLO + frame_codec.frame(frame_codec.END, {}), "a frame 'end' out of turn"),
        (HELLO + frame_codec.frame(frame_codec.META, {}), "message without 'schema'"),
        (
            HELLO + frame_codec.frame(frame_codec.META, {"schema": {"fields": [{"name": "x", "type": "u9"}]}}),
            "unknown type",
        ),
        (
            HELLO
            + frame_codec.frame(frame_codec.META, {"schema": {"fields": [{"name": "x", "type": "bytes(65536)"}]}}),
            "length from 1",
        ),
        (
            HELLO + frame_codec.frame(frame_codec.ERROR, {"what": "no", "where": "/a.ml", "hint": "go"}),
            "h:/a.ml: no; go",
        ),
        (HELLO + frame_codec.frame(frame_codec.ERROR, {"what": []}), "invalid 'what' in message"),
        (HELLO + meta() + frame_codec.head(frame_codec.OPENED, 0), "h: protocol error: message is not JSON"),
        (HELLO + meta() + frame_codec.head(frame_codec.DATA, 3) + b"abc", "h: the connection was lost"),
        (HELLO + meta() + frame_codec.head(frame_codec.DATA, 8) + b"abcdefgh", "is not an Arrow stream"),
        (HELLO + meta() + frame_codec.frame(frame_codec.END, {}), "ends before the schema"),
        (HELLO + meta() + stream(batch(1 << 50)), "a batch of 1125899906842624 bytes"),
        (
            HELLO + meta() + stream(batch(192)) + frame_codec.frame(frame_codec.END, {}),
            "ends in the middle of a message",
        ),
        (HELLO + meta() + frame_codec.head(frame_codec.PARTIAL, 1) + b"x", "groups instead of rows"),
    ],
)
def test_a_strange_server_is_left(tmp_path: Path, said: bytes, message: str) -> None:
    then = "" if "reached" in message or "lost" in message else "cat >/dev/null"
    shell = says(tmp_path, said, then=then)
    with pytest.raises(ConfluoError) as e:
        ask(shell, QueryRequest("seq < 20"))
    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_what_a_server_may_not_do_to_aggregates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_reader, "MAX_PARTIAL", 1000)
    piece = frame_codec.head(frame_codec.PARTIAL, 600) + bytes(600)
    for said, message in (
        (piece * 2, "too many groups"),
        (piece + frame_codec.frame(frame_codec.END, {}), "this is not a partial aggregate"),
        (frame_codec.head(frame_codec.DATA, 1) + b"x", "rows instead of groups"),
    ):
        with pytest.raises(ConfluoError, match=message):
            ask(says(tmp_path, HELLO + meta() + said, then="cat >/dev/null"), QueryRequest(agg="count"))
    with pytest.raises(ConfluoError, match="rows instead of a row count"):
        ask(
            says(tmp_path, HELLO + meta() + frame_codec.head(frame_codec.DATA, 1) + b"x", then="cat >/dev/null"),
            QueryRequest(counted=True),
        )


def test_a_flood_of_warnings_and_escape_sequences(tmp_path: Path) -> None:
    warning = frame_codec.frame(frame_codec.WARN, {"what": "\x1b[31mred\x1b]0;title\x07\nsecond line" + "x" * 10_000})
    shell = says(
        tmp_path,
        HELLO + meta() + warning * 500 + frame_codec.frame(frame_codec.ERROR, {"what": "\x1b[2Jgone"}),
        then="cat >/dev/null",
    )
    more = {**env(tmp_path), "CONFLUO_RSH": shell.rsh}
    done = run("confluo-query", "h:/a.ml", "--count", env=more)
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr
    assert b"\x07" not in done.stderr
    assert b"\\x1b[2Jgone" in done.stderr
    assert len(done.stderr) < 1 << 20
    assert sorted(p.name for p in tmp_path.iterdir()) == ["delay.py", "later", "rsh", "said", "says"]


def test_a_plan_and_a_schema_of_a_liar(tmp_path: Path) -> None:
    def shown(*words: str, end: dict[str, Any], **more: Any) -> subprocess.CompletedProcess[bytes]:
        shell = says(tmp_path, HELLO + meta(**more) + frame_codec.frame(frame_codec.END, end), then="cat >/dev/null")
        return run("confluo-query", "h:/a.ml", *words, env={**env(tmp_path), "CONFLUO_RSH": shell.rsh})

    good = {"blocks": 1, "damaged": 0, "indexes": [], "ns": 1, "steps": []}
    for plan in ({"blocks": 1}, {"blocks": "x"}, good | {"steps": [1]}, {"parts": [1]}, good | {"indexes": [{"x": 1}]}):
        done = shown("--explain", end={"rows": 1, "found": 1, "plan": plan})
        assert done.returncode == 2
        assert done.stderr == b"confluo-query: h:/a.ml: sent an invalid query plan\n"
    evil = {"depth": 0, "op": "or", "text": "\x1b[31mred"}
    done = shown("--explain", end={"rows": 1, "found": 1, "plan": good | {"steps": [evil]}})
    assert (done.returncode, b"\\x1b[31mred" in done.stdout, b"\x1b" in done.stdout) == (0, True, False)
    field = {"name": "x", "type": "u8", "description": "\x1b]0;title\x07"}
    done = shown("-f", "help", end={}, schema={"schema": "s", "fields": [field]})
    assert (done.returncode, b"\x1b" in done.stdout) == (0, False)


def tails(mark: int, *logs: list[int]) -> bytes:
    body = struct.pack("<QII", mark, len(logs), 0)
    for rows in logs:
        body += struct.pack("<II", len(rows), 0) + b"".join(struct.pack("<QQ", r, 0) for r in rows)
    return frame_codec.head(frame_codec.FROZEN, len(body)) + body


def thawed(mark: int, held: int = 1) -> bytes:
    return frame_codec.head(frame_codec.THAWED, 24) + struct.pack("<QQQ", mark, held, 5)


OPENED = frame_codec.frame(frame_codec.OPENED, {"logs": [{"path": "/x", "uuid": "ab" * 16, "kind": "k"}]})


@pytest.mark.parametrize(
    ("said", "later", "message"),
    [
        (frame_codec.frame(frame_codec.OPENED, {"logs": []}), b"", "invalid 'logs' in message"),
        (
            frame_codec.frame(frame_codec.OPENED, {"logs": [{"path": "/x", "uuid": "../../etc", "kind": "k"}]}),
            b"",
            "invalid 'uuid' in message",
        ),
        (frame_codec.frame(frame_codec.OPENED, {"logs": [{"error": {"what": "no"}}]}), b"", "h: no"),
        (OPENED + tails(1, [3]), b"", "an answer before a request"),
        (OPENED, b"", "the connection was lost"),
        (OPENED, tails(1, [3]) + frame_codec.frame(frame_codec.ERROR, {"what": "no"}), "h: no"),
        (OPENED, tails(1) + thawed(1), "tails of too few logs"),
        (OPENED, tails(1, [1 << 50]) + thawed(1), "unexpected answer to a freeze"),
        (OPENED, tails(1, [3])[:-8], "the connection was lost"),
        (
            OPENED,
            frame_codec.head(frame_codec.FROZEN, 16) + struct.pack("<QII", 1, 1 << 30, 0) + thawed(1),
            "unexpected answer to a freeze",
        ),
        (
            OPENED,
            frame_codec.head(frame_codec.FROZEN, 24) + struct.pack("<QIIII", 1, 1, 0, 1 << 30, 0) + thawed(1),
            "unexpected answer",
        ),
        (OPENED, frame_codec.head(frame_codec.FROZEN, 1 << 29), "unexpected answer to a freeze"),
        (OPENED, b"\xff" * 64, "unexpected answer to a freeze"),
        (OPENED, tails(9, [3]) + thawed(9), "did not freeze and thaw in time"),
        (OPENED, tails(1, [3]) + b"".join(thawed(i, 0) for i in range(1, 9)), "did not freeze and thaw in time"),
    ],
    ids=itertools.count(),
)
def test_a_strange_server_spoils_a_snapshot(tmp_path: Path, said: bytes, later: bytes, message: str) -> None:
    mine = multilog.create(tmp_path / "a.ml", SIGNED)
    with mine.writer() as writer:
        writer.append(signed_block(1, 0, 5))
        names = [("h:/a.ml", Address("h", "/a.ml", "h")), (mine.path, None)]
        shell = says(tmp_path, HELLO + said, later, "" if "lost" in message else "cat >/dev/null")
        with pytest.raises(ConfluoError) as e, SnapshotCoordinator(names, shell) as coordinator:
            coordinator.take(1_000_000 if "time" in message else 10 * SECOND)
        assert message in str(e.value)
        assert "\n" not in str(e.value)
        assert frozen(mine) == 0


def test_a_strange_server_may_be_right(tmp_path: Path) -> None:
    """The bytes of the document, from a server of another make."""
    shell = says(tmp_path, HELLO + OPENED, tails(1, [3, 4]) + thawed(1), "cat >/dev/null")
    with SnapshotCoordinator([("h:/a.ml", Address("h", "/a.ml", "h"))], shell) as coordinator:
        cut = coordinator.take(SECOND).logs[0]
    assert (cut.path, cut.tails, cut.firsts, cut.frozen_ns, cut.uuid) == ("/a.ml", (3, 4), (0, 0), 5, "ab" * 16)


def test_a_log_that_changed_its_schema_between(log: multilog.Log, tmp_path: Path) -> None:
    """A second request, for the fields of all logs, may be refused."""
    other = HELLO + meta(schema={"schema": "signed", "fields": [{"name": "writer", "type": "u32"}]})
    places = [LogPlace(log.path), LogPlace("", Address("h", "/a.ml", "h"))]
    shell = says(tmp_path, other + frame_codec.frame(frame_codec.ERROR, {"what": "no more"}), then="cat >/dev/null")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONFLUO_RSH", shell.rsh)
        with open_logs(places, QueryRequest()) as reader, pytest.raises(ConfluoError, match="no more"):
            list(reader.select(compile_expr("", reader.schema)))


# ---------------------------------------------------------------- over ssh


def test_over_ssh(tmp_path: Path) -> None:
    """A key that may only ask for one folder."""
    data = tmp_path / "data"
    data.mkdir()
    for folder in (data, tmp_path):
        with multilog.create(folder / "a.ml", SIGNED) as made, made.writer() as writer:
            writer.append(signed_block(1, 0, 1000))
    with ssh_server(tmp_path, f"{BIN / 'confluo-serve'} --stdio --root {data}") as (space, rsh):
        more = {**env(tmp_path), "CONFLUO_RSH": rsh}

        def asked(*words: Any) -> subprocess.CompletedProcess[bytes]:
            return space.run(BIN / words[0], *words[1:], check=False, env=more)

        count = asked("confluo-query", f"127.0.0.1:{data}/a.ml", "seq < 10", "--count")
        assert (count.returncode, count.stdout, count.stderr) == (0, b"10\n", b"")
        outside = asked("confluo-query", f"127.0.0.1:{tmp_path}/a.ml", "--count")
        assert outside.returncode == 2
        assert b"is outside the served folders" in outside.stderr
        cut = asked("confluo-snapshot", f"127.0.0.1:{data}/a.ml", "-w", tmp_path / "s.yaml")
        assert (cut.returncode, cut.stderr) == (0, b"")
        groups = asked("confluo-query", "--at", tmp_path / "s.yaml", "--by", "host", "-J")
        assert json.loads(groups.stdout) == {"host": "127.0.0.1", "count": 1000}
        refused = asked("confluo-query", "127.0.0.2:/a.ml", "--count")
        assert refused.returncode == 2
        assert b"127.0.0.2: cannot be reached: ssh: connect to host 127.0.0.2 port 2222" in refused.stderr


def test_the_shells_words() -> None:
    words = RemoteShell("ssh -o 'A B'", "confluo serve --stdio").words("ops@h")
    assert words == ["ssh", "-o", "A B", "ops@h", "confluo", "serve", "--stdio"]
