"""Traces of Flock (CoNEXT 2023) and of the simulators around it, as path records.

Text, a record a line: ``Failing_link A B RATE`` a directed link that was made to fail (A = B: a whole device);
``FP N1 .. NK`` a path that is possible between two ToRs; ``FID SRC DST SRC_TOR DST_TOR BYTES START_MS`` opens a flow,
``FPT N1 .. NK`` is the path it took, ``FPRT ..`` the way back, ``SS T_MS SENT LOST RANDOMLY_LOST`` what it had sent and
lost until then; the last counts.  Hosts are numbered from 10000.  A node 0 becomes `ZERO`, as in topology files.

A malformed line is reported, and its flow left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluo_tools.errors import FormatError
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.network.topology import ZERO

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Staging
    from confluo_tools.formats.bytestream import ByteStream

ROWS = 16384  # of a block
LONGEST = 1 << 20  # bytes of a line
COMPLAINTS = 5


class FlockReader(Reader):
    """Records of kind flow and failed."""

    format = "flock"

    def __init__(self, stream: ByteStream, *, warn: Warn | None = None, note: Warn | None = None) -> None:
        from confluo_tools.core.vote.flock_parser import TraceText
        from confluo_tools.schema import builtin

        super().__init__(stream.name, warn)
        self.stream, self.schema = stream, builtin("path")
        self.text = TraceText(ZERO)
        self.bad_lines = 0

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.core.block.block import Staging

        layout = self.schema.layout
        out = Staging(layout, ROWS)
        rest = b""
        while piece := self.stream.some():
            data = rest + piece if rest else piece
            at = self._feed(data, 0, out, final=False)
            while out.rows == out.capacity:
                yield out
                out = Staging(layout, ROWS)
                at = self._feed(data, at, out, final=False)
            rest = data[at:]
            if len(rest) > LONGEST:
                raise FormatError(f"has a line of more than {LONGEST >> 20} MiB", where=self.name)
        if self.stream.damage:
            self.warn(self.stream.damage)
            if rest:
                self.text.spoil()  # its last line may be cut
        elif rest:
            self._feed(rest, 0, out, final=True)
        if not self.text.finish(out):
            yield out
            out = Staging(layout, 1)
            self.text.finish(out)
        if out.rows:
            yield out
        if self.bad_lines > COMPLAINTS:
            self.warn(f"{self.bad_lines} lines do not fit and are left out")

    def _feed(self, data: bytes, at: int, out: Staging, *, final: bool) -> int:
        # To the end of the lines that are whole, or until the block is full.
        while True:
            at = self.text.feed(data, at, out, final)
            if not self.text.problem:
                return at
            self.bad_lines += 1
            if self.bad_lines <= COMPLAINTS:
                start, end = self.text.bad
                shown = data[start : min(end, start + 40)].decode("ascii", "replace")
                self.warn(f"line {self.text.line}: '{shown}' is not a record of a trace")

    def close(self) -> None:
        self.stream.close()
