"""Traces of Flock (CoNEXT 2023) and of the simulators around it, as path records.

Text, a record a line: ``Failing_link A B RATE`` a directed link that was made to fail (A = B: a whole device);
``FP N1 .. NK`` a path that is possible between two ToRs; ``FID SRC DST SRC_TOR DST_TOR BYTES START_MS`` opens a flow,
``FPT N1 .. NK`` is the path it took, ``FPRT ..`` the way back, ``SS T_MS SENT LOST RANDOMLY_LOST`` what it had sent and
lost until then; the last counts.  Hosts are numbered from 10000.  A node 0 becomes `ZERO`, as in topology files.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from confluo_tools.algo.topology import ZERO
from confluo_tools.formats.reader import Reader, Warn

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.formats.stream import ByteStream

WORDS = (b"Failing_link ", b"FP ", b"FID ", b"FPT ", b"FPRT ", b"SS ")
ROWS = 16384  # of a block
HOPS = 16  # room of a path
MOST = 255
LONGEST = 1 << 20  # bytes of a line
COMPLAINTS = 5


class FlockReader(Reader):
    """Records of kind flow and failed; ``possible`` holds the paths of FP lines, as numbers, when they are wanted."""

    format = "flock"

    def __init__(self, stream: ByteStream, *, possible: bool = False, warn: Warn | None = None) -> None:
        from confluo_tools.schema import builtin

        super().__init__(stream.name, warn)
        self.stream, self.schema = stream, builtin("path")
        self.want_possible = possible
        self.possible: list[tuple[int, ...]] = []
        self.failed: set[tuple[int, int]] = set()
        self.bad_lines = 0

    def blocks(self) -> Iterator[Block]:
        flows = _Flows()
        number = 0
        path: list[int] = []
        ends: list[int] | None = None
        start = 0
        snap: list[bytes] | None = None
        for number, line in enumerate(self.stream.lines(LONGEST), 1):
            try:
                if line.startswith(b"SS "):
                    if ends is None:
                        raise ValueError
                    snap = line.split()
                elif line.startswith(b"FPT "):
                    path = [int(n) for n in line.split()[1:]]
                elif line.startswith(b"FP "):
                    if self.want_possible:
                        self.possible.append(tuple([int(n) or ZERO for n in line.split()[1:]]))
                elif line.startswith(b"FID "):
                    if ends is not None:
                        flows.add(ends, start, path, snap, self.failed)
                    words = line.split()
                    ends, path, snap = [int(n) for n in words[1:5]], [], None
                    if len(ends) != 4 or min(ends) < 0:
                        ends = None
                        raise ValueError
                    start = int(float(words[6]) * 1e6) if len(words) > 6 else 0
                elif line.startswith(b"Failing_link "):
                    _, a, b, rate = line.split()
                    link = int(a) or ZERO, int(b) or ZERO
                    flows.failed(link, float(rate))
                    self.failed.add(link)
                elif line.strip() and not line.startswith(b"FPRT "):
                    raise ValueError
            except (ValueError, IndexError, OverflowError):
                self._complain(number, line)
            if flows.rows >= ROWS:
                yield flows.block()
        if self.stream.damage:
            self.warn(self.stream.damage)
        try:
            if ends is not None:
                flows.add(ends, start, path, snap, self.failed)
        except (ValueError, IndexError, OverflowError):
            self._complain(number, b"")
        if flows.rows:
            yield flows.block()
        if self.bad_lines > COMPLAINTS:
            self.warn(f"{self.bad_lines} lines do not fit and are left out")

    def _complain(self, number: int, line: bytes) -> None:
        self.bad_lines += 1
        if self.bad_lines <= COMPLAINTS:
            shown = line[:40].decode("ascii", "replace")
            self.warn(f"line {number}: '{shown}' is no record of a trace")

    def close(self) -> None:
        self.stream.close()


class _Flows:
    # Columns of the block that is being filled.
    def __init__(self) -> None:
        self.count = 0
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.kind, self.notes, self.hops = array("B"), array("B"), array("B")
        self.sport, self.dport = array("H"), array("H")
        self.ts, self.rate = array("q"), array("d")
        self.src, self.dst, self.sent, self.lost = array("I"), array("I"), array("I"), array("I")
        self.path, self.src_tor, self.dst_tor = array("I"), array("I"), array("I")
        self.a, self.b = array("I"), array("I")

    def failed(self, link: tuple[int, int], rate: float) -> None:
        self._row(2, 0, 0, 0, 0, 0, 0, [], 0, 0, link, rate)

    def add(
        self, ends: list[int], start: int, path: list[int], snap: list[bytes] | None, failed: set[tuple[int, int]]
    ) -> None:
        src, dst, src_tor, dst_tor = ends
        sent = lost = random = 0
        if snap is not None:
            _, when, *counts = snap
            start = int(float(when) * 1e6)
            sent, lost, random = int(counts[0]), int(counts[1]), int(counts[2]) if len(counts) > 2 else 0
        nodes = [n or ZERO for n in path]
        notes, link = 0, (0, 0)
        if lost:  # the culprit, where there is one only
            whole = [src or ZERO, *nodes, dst or ZERO]
            on_path = [pair for pair in pairwise(whole) if pair in failed or (pair[1], pair[1]) in failed]
            if lost <= random or not on_path:
                notes = 16
            elif len(on_path) == 1:
                link = on_path[0] if on_path[0] in failed else (on_path[0][1],) * 2
        self._row(1, notes, start, src, dst, sent, lost, nodes, src_tor or ZERO, dst_tor or ZERO, link, 0.0)

    def _row(
        self, kind: int, notes: int, ts: int, src: int, dst: int, sent: int, lost: int, path: list[int],
        src_tor: int, dst_tor: int, link: tuple[int, int], rate: float,
    ) -> None:  # fmt: skip
        numbers = (sent, lost, src, dst, src_tor, dst_tor, *path, *link)
        if min(numbers) < 0 or max(numbers) >= 1 << 32:
            raise ValueError  # before anything is appended: columns stay of one length
        if not -(1 << 63) <= ts < 1 << 63:
            raise ValueError
        self.rows += 1
        self.kind.append(kind)
        self.notes.append(notes)
        self.ts.append(ts)
        self.src.append(src or ZERO if kind == 1 else 0)
        self.dst.append(dst or ZERO if kind == 1 else 0)
        self.count += kind == 1
        self.sport.append(self.count & 0xFFFF)  # so that each flow has a name of its own
        self.dport.append(self.count >> 16 & 0xFFFF)
        self.sent.append(sent)
        self.lost.append(lost)
        self.hops.append(min(len(path), MOST))
        self.path.extend((path + [0] * HOPS)[:HOPS])
        self.src_tor.append(src_tor)
        self.dst_tor.append(dst_tor)
        self.a.append(link[0])
        self.b.append(link[1])
        self.rate.append(rate)

    def block(self) -> Block:
        from confluo_tools.core.block import Block
        from confluo_tools.schema import builtin

        schema = builtin("path")
        have = {
            "ts": self.ts, "kind": self.kind, "notes": self.notes, "src_ip": self.src, "dst_ip": self.dst,
            "src_port": self.sport, "dst_port": self.dport, "sent": self.sent, "lost": self.lost, "hops": self.hops,
            "path": self.path, "src_tor": self.src_tor, "dst_tor": self.dst_tor, "link_a": self.a, "link_b": self.b,
            "rate": self.rate,
        }  # fmt: skip
        out = Block.wrap(schema.layout, self.rows, [have.get(c.name) for c in schema.columns])
        self._clear()
        return out
