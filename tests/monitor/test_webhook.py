"""Alerts to a web server, with notes from the trigger file; alerts of triggers that were removed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import multilog
from confluo_tools.errors import UsageError
from confluo_tools.formats.block_builder import block_of
from confluo_tools.monitor import webhook
from confluo_tools.monitor.notes import AlertLines, filled
from confluo_tools.monitor.trigger_files import read_trigger_file
from confluo_tools.schema import builtin
from follow_lab import growing
from running import run

MS = 10**6
PATIENCE = 60.0


class Server:
    """``answers``: a status for each request, 200 after them; 0: no answer, until it ends.  ``got``: the bodies."""

    def __init__(self, answers: list[int]) -> None:
        self.answers, self.got, self.over = answers, list[dict[str, Any]](), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = server.answers.pop(0) if server.answers else 200
                if status == 0:
                    server.over.wait(PATIENCE)
                    return
                if status < 300:
                    server.got.append(json.loads(body))
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/hook?a=b"


@contextmanager
def serving(*answers: int) -> Iterator[Server]:
    server = Server(list(answers))
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ANSWER": 0.3, "FIRST_PAUSE": 0.01, "LONGEST_PAUSE": 0.02, "LOOK": 0.01}.items():
        monkeypatch.setattr(webhook, name, value)


@contextmanager
def alerts(path: Path) -> Iterator[tuple[Any, Callable[[int, int], None]]]:
    """An alerts log, and what appends alerts with these numbers (``rows``)."""
    schema = builtin("alert")
    with multilog.create(str(path), schema) as log, log.writer(ahead=-1) as writer:

        def append(first: int, count: int) -> None:
            writer.append(block_of(schema, {"rows": list(range(first, first + count))}, count))
            writer.flush()

        yield log, append


def sender(log: Any, url: str, said: list[str]) -> webhook.WebhookSender:
    lines = AlertLines(builtin("alert"), {})
    return webhook.WebhookSender(webhook.parse_address(url, "--webhook"), log, lines, said.append)


def test_each_alert_arrives_whatever_the_server_does(quick: None, tmp_path: Path) -> None:
    """In order, once each: errors and a server that hangs are tried again; what it refuses is counted."""
    said: list[str] = []
    with serving(500, 0, 503, 200, 429, 200, 400) as server, alerts(tmp_path / "a.ml") as (log, append):
        append(0, 3)  # of before the first run
        hook = sender(log, server.url, said)
        append(3, 7)
        until(lambda: not hook.waiting)
        assert hook.finish(0) == 0
        assert (hook.sent, hook.refused, hook.dropped) == (6, 1, 0)
        assert [int(alert["rows"]) for alert in server.got] == [3, 4, 6, 7, 8, 9]
    assert [line.split(": ", 1)[-1] for line in said[:1]] == [
        "answers 500 Internal Server Error; alerts wait, and it is tried again"
    ]
    assert any("refuses an alert" in line and "400" in line for line in said)
    assert "takes alerts again" in "".join(said)


def test_what_waits_is_sent_by_the_next_run(quick: None, tmp_path: Path) -> None:
    said: list[str] = []
    with alerts(tmp_path / "a.ml") as (log, append):
        with serving(*[500] * 1000) as server:
            hook = sender(log, server.url, said)
            append(0, 20)
            until(lambda: len(server.answers) < 998)
            assert hook.finish(0) == 20
        with serving() as server:
            again = sender(log, server.url, said)
            until(lambda: len(server.got) == 20)
            assert again.finish(PATIENCE) == 0
            assert [int(alert["rows"]) for alert in server.got] == list(range(20))
            last = sender(log, server.url, said)
            assert (last.finish(PATIENCE), len(server.got)) == (0, 20)


def test_the_oldest_are_dropped_when_too_many_wait(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "MAX_WAITING", 5)
    said: list[str] = []
    with serving(*[503] * 3) as server, alerts(tmp_path / "a.ml") as (log, append):
        hook = sender(log, server.url, said)
        append(0, 30)
        assert hook.finish(PATIENCE) == 0
        assert hook.dropped == 25
        assert [int(alert["rows"]) for alert in server.got] == list(range(25, 30))
    assert any("more than 5 alerts wait: the oldest are dropped" in line for line in said)


def test_a_server_that_trickles_is_given_up(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends a byte of its headers now and then, for ever: the time of the whole exchange is limited."""
    import socket

    monkeypatch.setattr(webhook, "WHOLE", 0.3)
    said: list[str] = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not over.wait(0.05):
                    try:
                        link.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        with alerts(tmp_path / "a.ml") as (log, append):
            hook = sender(log, f"http://127.0.0.1:{listener.getsockname()[1]}", said)
            append(0, 1)
            until(lambda: said)
            assert hook.finish(0) == 1
        over.set()
        thread.join()


FILE = """
webhook: URL
triggers:
- name: busy
  when: count > 2
  over: 10ms
  every: 1ms
  labels: {team: net, level: 3}
  severity: warning
  text: "{trigger} {event}: {value} > {threshold} {{now}}"
- "many: sum(n) > 3 over 20ms every 1ms by n"
"""


def test_the_command_sends_notes_and_clears_what_was_removed(tmp_path: Path) -> None:
    """Alerts of a replay, compared with those that it prints; then the same without one trigger that fires."""
    start = 1_700_000_000 * 10**9
    with growing(tmp_path / "a.ml") as append:
        append(*[start + i * MS for i in range(30)])
    words = [tmp_path / "a.ml", "--alerts", tmp_path / "alerts.ml", "-J", "--since", "2023-01-01", "-q"]
    rules = tmp_path / "rules.yaml"
    with serving() as server:
        rules.write_text(FILE.replace("URL", server.url))
        done = run("confluo-monitor", *map(str, words), "--triggers", str(rules))
        assert (done.returncode, done.stderr) == (0, b"")
        printed = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(printed) > 3
        notes = ("labels", "severity", "text")
        sent, shown = ([{k: v for k, v in a.items() if k not in notes} for a in some] for some in (server.got, printed))
        assert sent == shown
        busy = next(alert for alert in server.got if alert["trigger"] == "busy")
        assert (busy["labels"], busy["severity"]) == ({"team": "net", "level": "3"}, "warning")
        assert busy["text"] == "busy fire: 3 > 2 {now}"
        stored = run("confluo-query", str(tmp_path / "alerts.ml"), "severity == warning", "-J").stdout.splitlines()
        assert [json.loads(line) for line in stored] == [alert for alert in printed if alert["trigger"] == "busy"]
        first = json.loads(stored[0])
        assert [first[name] for name in notes] == ["team=net level=3", "warning", busy["text"]]
        assert {alert["severity"] for alert in printed if alert["trigger"] == "many"} == {None}
        fires = {a["key"] for a in printed if a["trigger"] == "many" and a["event"] == "fire"}
        fires -= {a["key"] for a in printed if a["trigger"] == "many" and a["event"] == "clear"}
        assert fires
        server.got.clear()
        rules.write_text(FILE.replace("URL", server.url).rpartition("- ")[0])
        for expected in (fires, set()):  # once
            done = run("confluo-monitor", *map(str, words), "--triggers", str(rules))
            cleared = [json.loads(line) for line in done.stdout.splitlines()]
            assert {a["key"] for a in cleared} == expected, done
            assert all(
                (a["trigger"], a["event"], a["condition"]) == ("many", "clear", "the trigger was removed")
                for a in cleared
            )
        assert {a["key"] for a in server.got} == fires


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("webhook: 7\ntriggers: []", "webhook is an address"),
        ("- {name: a, when: count > 1, over: 1s, text: '{price}'}", "'{price}' in its text is not a field of an alert"),
        ("- {name: a, when: count > 1, over: 1s, text: '{ts.__class__}'}", "is not a field of an alert"),
        ("- {name: a, when: count > 1, over: 1s, text: '{'}", "is not a field of an alert"),
        ("- {name: a, when: count > 1, over: 1s, severity: 'very bad'}", "severity is one word"),
        ("- {name: a, when: count > 1, over: 1s, labels: [a]}", "labels are names and values"),
        ("- {name: a, when: count > 1, over: 1s, labels: {a: [1]}}", "'a' is not a label with a short value"),
    ],
)
def test_notes_that_are_wrong_are_one_line(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(UsageError) as found:
        read_trigger_file(str(tmp_path / "rules.yaml"))
    assert what in str(found.value)


@pytest.mark.parametrize("url", ["ftp://a/b", "https://", "http://a:99999/", "http://a/b c", "a", "http://a/\n", "@"])
def test_addresses_that_are_wrong(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        webhook.parse_address(url, "--webhook")


def test_a_text_is_filled_in_once() -> None:
    assert filled("{key} {{key}} {value}", {"key": "{value}", "value": 0.5}) == "{value} {key} 0.5"


def test_an_alerts_log_of_before_gets_the_notes(tmp_path: Path) -> None:
    """A log without severity, labels and text: its alerts stay, without these."""
    start = 1_700_000_000 * 10**9
    with growing(tmp_path / "a.ml") as append:
        append(*[start + i * MS for i in range(30)])
    old = builtin("alert")
    old = old.project([f.name for f in old.fields if f.name not in ("severity", "labels", "text")])
    with multilog.create(str(tmp_path / "alerts.ml"), old, lanes=16) as log, log.writer(ahead=-1) as writer:
        writer.append(block_of(old, {"rows": [7], "ts": [start - 10**9]}, 1))
    (tmp_path / "rules.yaml").write_text(FILE.partition("triggers:")[2].join(["triggers:", ""]))
    words = [
        "--alerts",
        tmp_path / "alerts.ml",
        "--since",
        "2023-01-01",
        "-q",
        "-J",
        "--triggers",
        tmp_path / "rules.yaml",
    ]
    done = run("confluo-monitor", str(tmp_path / "a.ml"), *map(str, words))
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [json.loads(line) for line in run("confluo-query", str(tmp_path / "alerts.ml"), "-J").stdout.splitlines()]
    assert (rows[0]["rows"], rows[0]["severity"]) == (7, None)
    assert "warning" in {row["severity"] for row in rows[1:]}
