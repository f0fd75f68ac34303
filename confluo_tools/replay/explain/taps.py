"""Captures of a connection: one tap anywhere on its path, or one at each end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from confluo_tools import cli
from confluo_tools.errors import SchemaError
from confluo_tools.replay.explain.flows import FlowEnds, choose_flows
from confluo_tools.replay.explain.packet_schemas import with_evidence, with_sack

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.replay.explainer import Explainer
    from confluo_tools.formats.reader import Reader
    from confluo_tools.replay.explain.recordings import RecordedTap

NO_TIME = (1 << 63) - 1
MAX_FLOWS = 1 << 17  # 1 kB each, and the segments in flight


class Taps:
    """The inputs of a run.  ``metadata``: of the first; ``both``: they are the two ends of connections."""

    def __init__(self, inputs: Sequence[str], ins: cli.InputOptions, gap: int, flows: set[FlowEnds] | None) -> None:
        self.inputs, self.ins, self.gap, self.flows = list(inputs), ins, gap, flows
        self.metadata: dict[str, str] = {}
        self.both = False
        self._tapped: list[RecordedTap] = []  # of recordings

    def explain(self) -> Explainer:
        """Read all packets; the explainer has finished."""
        recorded = self._recorded()
        if recorded is not None:
            return recorded
        places = self._places() if len(self.inputs) == 2 and read_again(self.inputs) else []
        self.both = bool(places)
        readers = [self._open(paths) for paths in ([[p] for p in self.inputs] if self.both else [self.inputs])]
        try:
            self.metadata = readers[0].metadata
            explainer = self._explainer(readers[0], len(readers))
            for tap, ends in enumerate(places):
                explainer.place(tap, ends)
            cursors = [_Cursor(reader, explainer, tap) for tap, reader in enumerate(readers)]
            _merge(cursors)
        finally:
            for reader in readers:
                reader.close()
        explainer.finish()
        if explainer.evicted:
            cli.tell(f"more than {MAX_FLOWS:,} connections at a time: {explainer.evicted:,} were ended early")
        return explainer

    def _recorded(self) -> Explainer | None:
        """The explainer of recordings and replays; None if the inputs are packets."""
        from confluo_tools.core.replay.explainer import Explainer
        from confluo_tools.replay.explain import recordings

        if not read_again(self.inputs):
            return None
        readers: list[Reader] = []
        try:
            for path in self.inputs:
                readers.append(self.ins.open([path]))
                if readers[-1].schema.kind != "recording":
                    return None
            self.metadata = readers[0].metadata
            taps = recordings.recorded_taps(readers)
        finally:
            for reader in readers:
                reader.close()
        self._tapped = taps
        self.both = len(taps) > 1
        explainer = Explainer(with_evidence().layout, self.gap, len(taps), MAX_FLOWS)
        choose_flows(explainer, self.flows)
        for number, tap in enumerate(taps if self.both else []):
            explainer.place(number, dict(recordings.key_of(end) for end in tap.ends))
        cursors = [_Cursor(tap.blocks(with_evidence()), explainer, number) for number, tap in enumerate(taps)]
        _merge(cursors)
        explainer.finish()
        return explainer

    def again(self) -> Iterator[tuple[int, Block]]:
        """The packets of the first tap, or of the recorded end that sent most, once more: (rows before, block)."""
        if self._tapped:
            rows = 0
            for block in max(self._tapped, key=lambda tap: tap.payload).blocks(with_evidence()):
                yield rows, block
                rows += block.rows
            return
        with self._open(self.inputs[:1] if self.both else self.inputs) as reader:
            rows = 0
            for block in reader:
                yield rows, block
                rows += block.rows

    def _explainer(self, reader: Reader, taps: int) -> Explainer:
        from confluo_tools.core.replay.explainer import Explainer

        try:
            explainer = Explainer(reader.schema.layout, self.gap, taps, MAX_FLOWS)
        except KeyError as e:
            raise SchemaError(
                f"has no field {e}", where=reader.name, hint="confluo-replay-explain(1) lists what it needs"
            ) from None
        except ValueError as e:
            raise SchemaError(str(e), where=reader.name) from None
        choose_flows(explainer, self.flows)
        return explainer

    def _open(self, paths: Sequence[str]) -> Reader:
        from confluo_tools.formats.reader import Chain

        if len(paths) > 1 and any(_is_local_file(path) for path in paths):
            reader: Reader = Chain(self._one(paths[0]), paths[1:], self._one, cli.warn)
        else:
            reader = self._one(paths[0]) if len(paths) == 1 else self.ins.open(paths)
        if reader.schema.kind != "packet":
            what = f"holds records of kind '{reader.schema.kind}', not packets"
            raise SchemaError(what, where=reader.name, hint="confluo-capture and confluo-replay-record record them")
        return reader

    def _one(self, path: str) -> Reader:
        from confluo_tools.formats.pcap.reader import CaptureReader

        reader = self.ins.open([path])
        if isinstance(reader, CaptureReader):
            reader.fill(with_sack())
        return reader

    def _places(self) -> list[dict[bytes, int]]:
        """At which end each of two taps is, by connection; empty unless they are at different ends of one."""
        found = []
        for path in self.inputs:
            with self._open([path]) as reader:
                explainer = self._explainer(reader, 1)
                for block in reader:
                    explainer.feed(block)
                found.append(explainer.distances())
        places: list[dict[bytes, int]] = [{}, {}]
        for key, first in found[0].items():
            side = first_side(first, found[1][key]) if key in found[1] else -1
            if side >= 0:
                places[0][key], places[1][key] = side, 1 - side
        return places if places[0] else []


def first_side(first: tuple[int, int, int], second: tuple[int, int, int]) -> int:
    """The side at which the first of two taps is; -1 if they are not at different ends.

    Each has the side that the handshake shows, or -1, and the shortest round trip of the data of each side: it is
    longer where the data comes from.
    """
    if first[0] >= 0 and second[0] >= 0:
        return first[0] if first[0] != second[0] else -1
    for side in (0, 1):
        here, there = first[1 + side], second[1 + side]
        if here and there and max(here, there) > 2 * min(here, there):
            return side if here > there else 1 - side
    return -1


class _Cursor:
    """The next row of a tap."""

    def __init__(self, blocks: Iterable[Block], explainer: Explainer, tap: int) -> None:
        self._blocks: Iterator[Block] = iter(blocks)
        self._ts, self._layout = explainer.layout.index("ts"), explainer.layout
        self.explainer, self.tap, self.row = explainer, tap, 0
        self.block: Block | None = None
        self._next()

    def _next(self) -> None:
        self.row = 0
        self.block = next((block for block in self._blocks if block.rows), None)
        if self.block is not None and self.block.layout is not self._layout:
            self.block = self.block.project(self._layout)

    @property
    def ts(self) -> int:
        return NO_TIME if self.block is None else int(self.block.get(self._ts, self.row))

    def feed(self, until: int) -> None:
        """Explain packets up to the time ``until``, at least one."""
        assert self.block is not None
        self.row = self.explainer.feed(self.block, self.row, max(until, self.ts), self.tap)
        if self.row >= self.block.rows:
            self._next()


def _merge(cursors: list[_Cursor]) -> None:
    while True:
        cursors.sort(key=lambda c: c.ts)
        if cursors[0].block is None:
            return
        cursors[0].feed(cursors[1].ts if len(cursors) > 1 else NO_TIME)


def _is_local_file(path: str) -> bool:
    from confluo_tools.formats import detect

    return cli.remote(path) is None and not detect.is_folder(path)


def read_again(inputs: Sequence[str]) -> bool:
    """Whether the inputs can be read a second time."""
    import os

    return all(cli.remote(path) is not None or os.path.isfile(path) or os.path.isdir(path) for path in inputs)
