"""Labels of confluo-replay explain on real traffic, to the count of the kernel that made it, and with tshark."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from real_time import in_real_time
from wire_lab import carried, explained, needs_wire, packets, sent_again, stalls

DELAY = 0.005
CLIENT, SERVER = "10.78.0.1", "10.78.0.2"
MSS = 1448


def without(lost: Callable[[Any], bool]) -> Any:
    return lambda p: None if lost(p) else DELAY


def times(number: int, count: int) -> Any:
    """The packet with this number is lost, and what repeats it, ``count`` times in all."""
    state: dict[str, int] = {"left": count}

    def lost(p: Any) -> bool:
        if p.side == 0 and p.number == number:
            state.setdefault("seq", p.seq)
        if p.side or not p.size or p.seq != state.get("seq") or not state["left"]:
            return False
        state["left"] -= 1
        return True

    return without(lost)


def at_random(seed: int, share: float) -> Any:
    chance = random.Random(seed)
    return without(lambda p: p.count > 3 and chance.random() < share)


def late_original(number: int, loses: int) -> Any:
    """The packet with this number comes 0.6 s late, and the next ``loses`` ones that repeat it are lost."""
    state: dict[str, int] = {"times": 0}

    def rule(p: Any) -> float | None:
        if p.side == 0 and p.number == number:
            state.setdefault("seq", p.seq)
        if p.side or not p.size or p.seq != state.get("seq"):
            return DELAY
        state["times"] += 1
        return 0.6 if state["times"] == 1 else None if state["times"] <= 1 + loses else DELAY

    return rule


def bulk(size: int) -> Any:
    return lambda wire: stalls.transfer(*wire.connect(), size)


def bulk_and_more(size: int) -> Any:
    """The acknowledgement of the last data follows whatever was still on its way."""

    def traffic(wire: Any) -> None:
        client, server = wire.connect()
        stalls.transfer(client, server, size)
        stalls.transfer(client, server, MSS)

    return traffic


def nagle(wire: Any) -> None:
    client, server = wire.connect()
    stalls.ask(client, server)
    for _ in range(2):
        client.sendall(bytes(50))
        client.sendall(bytes(50))
        stalls.read_all(server, 100)
        server.sendall(bytes(10))
        stalls.read_all(client, 10)


def restart(wire: Any) -> None:
    client, server = wire.connect()
    stalls.transfer(client, server, 200_000)
    time.sleep(0.5)
    stalls.transfer(client, server, 200_000)


SCENARIOS: dict[str, tuple[Any, Any]] = {
    "one in the middle": (times(5, 1), bulk(30_000)),
    "retransmission lost": (times(5, 2), bulk(30_000)),
    "burst": (without(lambda p: p.side == 0 and 3 <= p.number <= 9), bulk(60_000)),
    "tail": (times(20, 1), bulk(21 * MSS)),
    "tail and probe": (times(20, 2), bulk(21 * MSS)),
    "timeouts": (times(20, 3), bulk(21 * MSS)),
    "single packet": (times(0, 2), bulk(1000)),
    "SYN": (without(lambda p: p.side == 0 and p.count == 0), bulk(3000)),
    "SYN-ACK": (without(lambda p: (p.side == 1 and p.count == 0) or (p.side == 0 and p.count == 1)), bulk(3000)),
    "acknowledgements": (without(lambda p: p.side == 1 and p.number < 0 and 1 <= p.count < 12), bulk(10 * MSS)),
    "late packets": (lambda p: DELAY + (0.02 if p.side == 0 and p.number in (12, 30, 45) else 0), bulk(120_000)),
    "late packet, lost retransmission": (late_original(20, 1), bulk_and_more(21 * MSS)),
    "late packet, lost retransmissions": (late_original(12, 2), bulk_and_more(30 * MSS)),
    "nagle": (without(lambda p: False), nagle),
    "restart": (without(lambda p: False), restart),
    "3 % of all": (at_random(1, 0.03), bulk(300_000)),
    "8 % of all": (at_random(2, 0.08), bulk(150_000)),
    **{name: (None, name) for name in stalls.SCENARIOS},
}


@pytest.mark.root
@pytest.mark.net
@pytest.mark.parametrize("name", SCENARIOS)
@in_real_time
def test_the_kernel_and_tshark_agree(name: str, tmp_path: Path) -> None:
    rule, traffic = SCENARIOS[name]
    needs_wire()
    wire = stalls.run(traffic) if rule is None else carried(rule, traffic)
    client, server = (wire.capture(side, tmp_path / f"{side}.pcap") for side in (0, 1))
    both = explained(client, server)[0]
    for side, (path, address) in enumerate(((client, CLIENT), (server, SERVER))):
        counts_of_the_kernel(wire.counted(side), path, side, address)
    for rows in (explained(server)[0], both):
        acknowledgements_of_the_timer(wire.counted(1), rows, exact=name in ("nagle", "shrink"))
    what_was_lost(wire, both)
    if shutil.which("tshark"):
        fields_of_tshark(client)


def counts_of_the_kernel(kernel: dict[str, int], path: Path, side: int, address: str) -> None:
    """Retransmissions by mechanism, probes, reports of duplicates, closed windows."""
    rows, _, explainer = explained(path)
    labels = sent_again(rows, address)
    # A probe with new data looks like any other new data; of one segment in flight, it looks like a timeout.
    waits = sum(r["event"] == "gap" and r["trigger"] != "packet" for r in rows)
    alone = sum(r["label"] == "tlp" and r["certainty"] == "likely" for r in rows)
    assert -alone <= kernel["TCPLossProbes"] - labels["tlp"] <= waits, labels
    assert 0 <= kernel["TCPTimeouts"] - labels["rto"] <= alone, labels
    counted = {
        "TCPFastRetrans": labels["fast_rtx"] + labels["late_fr"],
        "TCPSlowStartRetrans": labels["after_rto"],
        "TCPWinProbe": labels["window_probe"],
        "RetransSegs": sum(labels.values()) - labels["window_probe"] - labels["keep_alive"],
    }
    assert counted == {key: kernel[key] for key in counted}, (side, labels)
    facts = [flow[side] for flow in explainer.flow_facts()]  # the client has the lower address
    assert sum(fact[2] for fact in facts) == kernel["TCPDSACKRecv"]
    assert sum(fact[3] for fact in facts) == kernel["TCPToZeroWindowAdv"]


def acknowledgements_of_the_timer(kernel: dict[str, int], rows: list[dict[str, Any]], exact: bool) -> None:
    """Seen where they are sent, as many as the kernel of the server counts; between bursts of data its timer may fire
    just after a packet."""
    late = [r for r in rows if r["event"] == "ack" and r["trigger"] == "timer" and r["src_ip"] & 3 == 2]
    assert len(late) <= kernel["DelayedACKs"]
    assert not exact or len(late) == kernel["DelayedACKs"]


def what_was_lost(wire: Any, both: list[dict[str, Any]]) -> None:
    """Data that is sent again had arrived, or was lost each time: as the wire says, which carried it."""
    if len({p.port for p, _ in wire.log}) > 1:
        return  # numbers are relative to one connection
    base = next(p.seq for p, _ in wire.log if p.side == 0)
    rows = [r for r in both if r["event"] == "retransmission" and r["len"]]
    for row in (r for r in rows if r["src_ip"] & 3 == 1):
        sent = [lost for p, lost in wire.log if not p.side and p.size and (p.seq - base) % 2**32 == row["seq"]]
        before = sum(r["seq"] == row["seq"] and r["packet"] < row["packet"] for r in rows) + 1
        arrived = row["why"] in ("ack_loss", "delayed_ack", "spurious")
        assert arrived == (not all(sent[:before])), row


def fields_of_tshark(path: Path) -> None:
    """SACK blocks, and retransmissions; tshark calls some that follow duplicate ACKs at once out of order."""
    fields = ("tcp.analysis.retransmission", "tcp.analysis.out_of_order", "tcp.options.sack_le", "tcp.options.sack_re")
    argv = ["tshark", "-r", path, "-o", "tcp.relative_sequence_numbers:FALSE", "-T", "fields"]
    argv += [word for field in fields for word in ("-e", field)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = [line.split("\t") for line in done.stdout.splitlines()]
    again = {number for number, line in enumerate(found, 1) if line[0] or line[1]}
    assert {r["packet"] for r in explained(path)[0] if r["event"] in ("retransmission", "order")} == again
    edges = [[[int(n) for n in field.split(",") if n] for field in line[2:]] for line in found]
    assert [[[block[i] for block in packet.sacks] for i in (0, 1)] for _, packet in packets(path)] == edges


@pytest.mark.root
@pytest.mark.net
def test_the_paper_in_one_row(tmp_path: Path) -> None:
    """Section 2.1: a timeout for data that had arrived, because its acknowledgement was delayed.

    On a busy machine the timer of the sender may fire first, or the receiver answer at once: one of three runs must
    show it.
    """
    needs_wire()
    said = []
    for _ in range(3):
        wire = stalls.run("short")
        client, server = (wire.capture(side, tmp_path / f"{side}.pcap") for side in (0, 1))
        rows = [r for r in explained(client, server)[0] if r["label"] == "rto" and r["flow"] == 0]
        said.append([(r["why"], r["certainty"]) for r in rows])
        if said[-1][-1:] == [("delayed_ack", "known")]:
            break
    assert said[-1][-1:] == [("delayed_ack", "known")], said
    from_client = [r for r in explained(client)[0] if r["label"] == "rto" and r["flow"] == 0]
    assert from_client[-1]["why"] in ("delayed_ack", "spurious")  # one end cannot tell them apart
