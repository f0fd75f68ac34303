"""The wire of examples/stalls for tests, and what the kernel and `confluo-replay explain` count on it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

import netns
from confluo_tools.cli import InputOptions
from confluo_tools.core.replay.explainer import Explainer
from confluo_tools.formats.pcap.files import Captures
from confluo_tools.replay.explain.labels import CERTAINTY, EVENTS, LABELS, PATTERNS, TRIGGERS
from confluo_tools.replay.explain.packet_schemas import with_sack
from confluo_tools.replay.explain.taps import Taps
from confluo_tools.schema import builtin
from running import BIN, environment, popen
from sessions import ROOT
from twin_explain_state import Packet

WSCALE, SACK_OK = 2, 4  # bits of tcp_opts
_NAMED = {"event": EVENTS, "trigger": TRIGGERS, "certainty": CERTAINTY}
_NAMED |= dict.fromkeys(("label", "why", "cause", "main"), LABELS)


def _load() -> Any:
    loader = SourceFileLoader("stalls", str(ROOT / "examples" / "stalls"))
    spec = spec_from_loader("stalls", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["stalls"] = module
    loader.exec_module(module)
    return module


stalls = _load()


def needs_wire() -> None:
    """Skip the test where there can be no namespaces."""
    if netns.missing():
        pytest.skip(netns.missing())


def carried(rule: Any, traffic: Callable[[Any], None], **settings: Any) -> Any:
    """A wire that has carried this traffic."""
    needs_wire()
    with stalls.Wire(rule, **settings) as wire:
        traffic(wire)
    return wire


def recorded(rule: Any, traffic: Callable[[Any], None], folder: Path, **settings: Any) -> tuple[Any, Path, Path]:
    """(a wire that has carried this traffic, recordings of client and server with headers)."""
    needs_wire()
    logs = [folder / f"{end}.ml" for end in stalls.ENDS]
    with stalls.Wire(rule, **settings) as wire, ExitStack() as stack:
        recorders = [stack.enter_context(_recorder(*which)) for which in zip(wire.names, logs, strict=True)]
        traffic(wire)
        limit, seen = time.monotonic() + 10, -1
        while len(wire.log) > seen and time.monotonic() < limit:  # until nothing is on its way any more
            seen = len(wire.log)
            time.sleep(0.3)
        for process in recorders:
            process.terminate()
            process.wait(60)
    return wire, logs[0], logs[1]


@contextmanager
def _recorder(namespace: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    words = [BIN / "confluo-replay-record", "attach", "--netns", namespace, "--level", "headers", "-w", log]
    with popen([*words, "--port", str(stalls.PORT)], stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert "recording; pid" in said, said
            yield process
        finally:
            process.kill()


def explained(*paths: Path, gap: int = 1_000_000) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Explainer]:
    """(labels in the order in which they were found, messages, the explainer); two captures: of both ends."""
    taps = Taps(
        [str(path) for path in paths], InputOptions(dict.fromkeys(("input_format", "at", "partial"))), gap, None
    )
    explainer = taps.explain()
    return table(explainer, "explanation"), table(explainer, "message"), explainer


def table(explainer: Explainer, kind: str) -> list[dict[str, Any]]:
    """Its rows, with names instead of numbers."""
    layout = builtin(kind).layout
    found = []
    made = explainer.rows(layout, PATTERNS) if kind == "explanation" else explainer.messages(layout, LABELS)
    for block in made.blocks():
        for i in range(block.rows):
            row = {name: block.get(k, i) for k, name in enumerate(layout.names)}
            found.append({k: _NAMED[k][v] if k in _NAMED else v for k, v in row.items()})
    return found


def rows_of_packets(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a capture."""
    layout = with_sack().layout
    for block in Captures([str(path)], with_sack()):
        for i in range(block.rows):
            yield {name: block.get(k, i) for k, name in enumerate(layout.names)}


def packets(path: Path) -> Iterator[tuple[Any, Packet]]:
    """(connection, packet) of a capture, for the twin."""
    number = 0
    for v in rows_of_packets(path):
        number += 1
        if v["proto"] != 6:
            continue
        a, b = (v["src_ip"], v["src_port"]), (v["dst_ip"], v["dst_port"])
        edges = v["tcp_sack"]
        yield (
            (min(a, b), max(a, b)),
            Packet(
                number,
                v["ts"],
                int(a > b),
                v["tcp_seq"],
                v["tcp_ack"],
                v["payload_len"],
                v["tcp_flags"],
                v["tcp_window"],
                v["tcp_wscale"] if v["tcp_opts"] & WSCALE else -1,
                v["tcp_mss"],
                bool(v["tcp_opts"] & SACK_OK),
                v["ip_id"],
                v["tcp_tsval"],
                v["tcp_tsecr"],
                tuple((edges[k], edges[k + 1]) for k in range(0, 8, 2) if edges[k] or edges[k + 1]),
            ),
        )


def sent_again(rows: list[dict[str, Any]], side: str) -> Counter[str]:
    """Retransmissions and probes by label, of the end with this address."""
    from ipaddress import ip_address

    number = int(ip_address(side))
    return Counter(r["label"] for r in rows if r["event"] in ("retransmission", "probe") and r["src_ip"] == number)
