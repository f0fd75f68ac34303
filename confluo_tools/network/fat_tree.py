"""The fat tree of K-port switches (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008): names, addresses and links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MAX_K = 48


class FatTreeServer(NamedTuple):
    """A server, its address, and the pod and podset that it is in; both have the name of a switch or a number."""

    name: str
    address: str
    pod: str
    podset: str


class FatTree:
    """K podsets of K/2 ToRs and K/2 T1s, (K/2)^2 T2s, K/2 servers at a ToR.

    T1 number i of each podset has links to the T2s number (i - 1) * K/2 + 1 to i * K/2.
    """

    def __init__(self, k: int) -> None:
        if k % 2 or not 2 <= k <= MAX_K:
            raise ValueError(f"K is an even number from 2 to {MAX_K}")
        self.k, self._half = k, range(1, k // 2 + 1)
        self._podsets = range(1, k + 1)

    def tors(self) -> Iterator[tuple[str, str]]:
        """ToRs, each with the pod of its servers."""
        for p in self._podsets:
            yield from ((f"tor-{p}-{i}", f"pod-{p}-{i}") for i in self._half)

    def t1s(self) -> Iterator[str]:
        for p in self._podsets:
            yield from (f"t1-{p}-{i}" for i in self._half)

    def t2s(self) -> Iterator[str]:
        yield from (f"t2-{i}" for i in range(1, (self.k // 2) ** 2 + 1))

    def links(self) -> Iterator[tuple[str, str]]:
        for p in self._podsets:
            for i in self._half:
                yield from ((f"tor-{p}-{i}", f"t1-{p}-{j}") for j in self._half)
                yield from ((f"t1-{p}-{i}", f"t2-{(i - 1) * (self.k // 2) + j}") for j in self._half)

    def servers(self) -> Iterator[FatTreeServer]:
        """Addresses as in the paper, from 10.0.0.2 on: 10.podset.ToR.server, each from 0 but the server, from 2."""
        for p in self._podsets:
            for i in self._half:
                for j in self._half:
                    yield FatTreeServer(
                        f"host-{p}-{i}-{j}", f"10.{p - 1}.{i - 1}.{j + 1}", f"pod-{p}-{i}", f"podset-{p}"
                    )
