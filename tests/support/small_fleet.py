"""Probes of a small Clos, row by row: 3 podsets of 2 pods of 2 servers; faults of hosts, switches and pairs.

SYNs are retried after 1, 2, 3 ... seconds, as by Linux with 4 linear timeouts; the third one is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from twin_probe_tally import SCHEMA, block, probe

SECOND = 10**9
START = 1767225600 * SECOND
SERVERS = [(f"p{pod}{name}", f"p{pod}", f"ps{(pod + 1) // 2}") for pod in range(1, 7) for name in "ab"]
Lost = Callable[[float, tuple[str, str, str], tuple[str, str, str], Random], bool]


def peers(i: int) -> list[int]:
    """The other server of the pod, and the server at the same position of each other pod."""
    return [j for j in range(len(SERVERS)) if j != i and (j % 2 == i % 2 or j // 2 == i // 2)]


def rows(
    lost: Lost, seconds: int, seed: int, every: float = 1.0, sends: Lost | None = None
) -> Iterator[dict[str, Any]]:
    """A row per probe.  ``lost``: whether a SYN sent at a time is lost; ``sends``: whether a server probes then."""
    random = Random(seed)
    for i, src in enumerate(SERVERS):
        for j in peers(i):
            dst, t = SERVERS[j], random.random() * every
            while t < seconds:
                if sends is None or sends(t, src, dst, random):
                    retries = next((n for n in range(3) if not lost(t + n, src, dst, random)), -1)
                    yield probe(
                        ts=START + int(t * SECOND),
                        outcome=1 if retries >= 0 else 2,
                        retries=max(retries, 0),
                        hint=int(retries > 0),
                        rtt=0 if retries else 200_000,
                        elapsed=int((retries if retries >= 0 else 3) * 1.01 * SECOND) + 300_000,
                        src=src[0],
                        dst=dst[0],
                        src_pod=src[1],
                        dst_pod=dst[1],
                        src_podset=src[2],
                        dst_podset=dst[2],
                        src_dc="dc1",
                        dst_dc="dc1",
                        ip_version=4,
                        src_ip=0x0A000001 + i,
                        dst_ip=0x0A000001 + j,
                        src_port=32768 + random.randrange(28000),
                        dst_port=32000,
                    )
                t += every


def stopped(name: str, period: float = 20.0, at: float = 0.0, to: float = 1e9) -> Lost:
    """A server that answers no SYN in the second half of each period."""
    return lambda t, src, dst, _: dst[0] == name and at <= t < to and t % period >= period / 2


def runs(name: str, period: float = 20.0, at: float = 0.0, to: float = 1e9) -> Lost:
    """While it is stopped, it does not probe either."""
    silent = stopped(name, period, at, to)
    return lambda t, src, dst, random: not silent(t, dst, src, random)


def off(name: str, at: float, to: float) -> Lost:
    """A host without a network from ``at`` to ``to``."""
    return lambda t, src, dst, _: name in (src[0], dst[0]) and at <= t < to


def tor(pod: str, rate: float) -> Lost:
    """A ToR that drops packets at random, of SYNs and of answers."""
    through = 2 * rate
    return lambda t, src, dst, random: pod in (src[1], dst[1]) and random.random() < through


def link(name: str, rate: float) -> Lost:
    """The cable of a server."""
    return lambda t, src, dst, random: name in (src[0], dst[0]) and random.random() < rate


def either(*faults: Lost) -> Lost:
    return lambda *probe_: any(lost(*probe_) for lost in faults)


def write(path: Path, lost: Lost, seconds: int = 300, seed: int = 1, **more: Any) -> Path:
    from confluo_tools.cli import RecordOutput

    found = sorted(rows(lost, seconds, seed, **more), key=lambda row: row["ts"])
    with RecordOutput(SCHEMA, "stream", path=str(path)) as out:
        for i in range(0, len(found), 60_000):
            out.write(block(found[i : i + 60_000]))
    return path


def hole(*pairs: tuple[str, str]) -> Lost:
    """All packets between two servers are lost, both ways."""
    return lambda t, src, dst, _: (src[0], dst[0]) in pairs or (dst[0], src[0]) in pairs
