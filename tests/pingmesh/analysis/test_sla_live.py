"""Drops that real kernels counted, as confluo-pingmesh sla counts them; and what times alone would have said."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from netns import Space
from ping_lab import LIMIT, SYN, Targets, lose, restore
from running import BIN, completed, environment

pytestmark = [pytest.mark.net, pytest.mark.root]
PROBES = 800


def told(*words: Any) -> list[dict[str, Any]]:
    done = completed(
        [BIN / words[0], *map(str, words[1:]), "-J"],
        capture_output=True,
        check=False,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("timeouts", "system"), [(4, "linux"), (0, "linux-classic")])
def test_drops_are_those_that_were_made(pair: tuple[Space, Space], tmp_path: Path, timeouts: int, system: str) -> None:
    """Of each source port it is known how many of its SYNs are lost: none, one, two, or all."""
    a, b = pair
    a.run("sh", "-c", f"echo {timeouts} >/proc/sys/net/ipv4/tcp_syn_linear_timeouts")
    lose(
        b,
        f"in: {SYN} tcp sport & 7 == 1 update @lost {{ tcp sport {LIMIT.format(1)} }} drop\n"
        f"in: {SYN} tcp sport & 7 == 2 update @lost2 {{ tcp sport {LIMIT.format(2)} }} drop\n"
        f"in: {SYN} tcp sport & 7 == 3 drop",
    )
    log = tmp_path / "probes.ml"
    with b.inside():
        target = Targets(b.address)
    try:
        with target:
            words = ["probe", f"{b.address}:{target.port}", "-c", PROBES, "-i", "2ms", "--lab", "-w", log, "-q"]
            probing = a.popen(BIN / "confluo-pingmesh", *words, env=environment(), stderr=subprocess.PIPE)
            _, err = probing.communicate(timeout=60)
    finally:
        restore(b)
        a.run("sh", "-c", "echo 4 >/proc/sys/net/ipv4/tcp_syn_linear_timeouts")
    assert probing.returncode == 0, err
    ports = [row["src_port"] & 7 for row in told("confluo-query", log, "kind == tcp", "-f", "src_port")]
    assert len(ports) == PROBES
    [row] = told("confluo-pingmesh", "sla", log, "--by", "all")
    assert row["timeout"] == row["failed"] == ports.count(3) > 0
    assert row["dropped"] == ports.count(1) + ports.count(2) > 0
    assert (row["ok"], row["samples"]) == (PROBES - row["failed"], PROBES - row["failed"] - row["dropped"])
    assert row["overflow"] == row["local"] == 0
    assert row["drop_low"] < row["drop_rate"] < row["drop_high"]
    # one retried probe among the times, and P99 would be a second
    assert row["p99_high"] < 500_000_000
    assert (row["state"], row["why"]) == ("bad", "drop")
    # the same records without the counters of the kernel
    done = completed(
        [BIN / "confluo-query", log, "kind == tcp", "-f", "-retries,-rtt,-hint", "-o", "stream"],
        capture_output=True,
        check=True,
        env=environment(),
    )
    blind = tmp_path / "blind.arrows"
    blind.write_bytes(done.stdout)
    [guessed] = told("confluo-pingmesh", "sla", blind, "--by", "all", "--signature", system)
    assert [guessed[n] for n in ("ok", "dropped", "failed")] == [row[n] for n in ("ok", "dropped", "failed")]
