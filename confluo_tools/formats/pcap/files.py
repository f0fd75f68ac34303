"""Capture files as blocks of packet records."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import TracebackType
from typing import Protocol

from confluo_tools.core.block.block import Block
from confluo_tools.core.packets.packet import Packets
from confluo_tools.core.packets.pcap import Capture
from confluo_tools.errors import ConfluoError, FormatError, SchemaError
from confluo_tools.formats.decompress import compression
from confluo_tools.formats.pcap.bytes import ByteSource
from confluo_tools.schema import Field, Schema, builtin
from confluo_tools.schema.telemetry_fields import DIGEST, PLACE, TELEMETRY

ROWS = 1024  # rows per batch: few enough for the L2 cache, many enough to hide the cost of Python
BATCH_BYTES = 1 << 22  # limit of a batch with wide rows (raw bytes)
PATIENCE = 0.05  # s that rows of a live input wait for more
MAX_SNAP = 65535
MAX_NUMBER = (1 << 32) - 1  # of a file
NO_CAPTURE = "not a pcap or pcapng capture"  # the fault of a Capture with other first bytes
_MAGICS = "a1b2c3d4 d4c3b2a1 a1b23c4d 4d3cb2a1 a1b2cd34 34cdb2a1 0a0d0d0a"
MAGICS = frozenset(bytes.fromhex(m) for m in _MAGICS.split())


def is_capture(start: bytes) -> bool:
    """Whether a file with these first four bytes may be a capture, perhaps compressed."""
    return start[:4] in MAGICS or bool(compression(start))


@cache
def packet_schema(*, offset: bool = True, snap: int = 0, telemetry: bool = False, digest: bool = False) -> Schema:
    """The packet schema of a capture.

    ``offset``: with the fields file_offset and file_number.
    ``snap``: with the first ``snap`` bytes of each packet in a field raw.
    ``telemetry``: with the fields of in-band telemetry.  ``digest``: with the field packet_digest.
    """
    full = builtin("packet")
    asked = {**dict.fromkeys(PLACE, offset), **dict.fromkeys(TELEMETRY, telemetry)}
    schema = full.project([f.name for f in full.fields if not f.optional or asked.get(f.name)])
    if digest:
        text = "hash of the bytes from the IP header on, without TTL and header checksum; to find copies"
        schema = schema.plus([Field(DIGEST, "u64", "", text)])
    if not snap:
        return schema
    if not 1 <= snap <= MAX_SNAP:
        raise SchemaError(f"{snap} bytes of each packet cannot be kept", hint=f"1 to {MAX_SNAP} can")
    text = "first bytes of the packet; cap_len is their number"
    return schema.plus([Field("raw", f"bytes({snap})", "", text)])


class FrameParser(Protocol):
    """What makes rows of the frames of a capture: `Packets`, or another decoder."""

    @property
    def waiting(self) -> int: ...
    @property
    def wire_bytes(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]: ...
    def fill(self, capture: Capture) -> str: ...
    def take(self) -> Block: ...
    def unknown_links(self) -> list[int]: ...


class Captures:
    """Iterates the packets of capture files, file after file, as Blocks with the columns of ``schema``.

    Interfaces are numbered through all files.  The field file_offset begins again in each (decompressed) file.
    ``number``: of the first file in the field file_number.  It may be set before the first block is read.
    ``warnings`` describes irregularities and damage, one line per file; all readable packets are read.
    ``damaged``: some bytes were unreadable.
    ``live``: a read may have to wait (a pipe, or a followed file).
    A Block may be kept: its memory is not reused while it is referenced.
    ``parser``: makes the rows of the frames; None: one row for each packet.
    """

    def __init__(
        self,
        paths: Sequence[str],
        schema: Schema | None = None,
        *,
        decap: str = "outer",
        follow: bool = False,
        rows: int = ROWS,
        begun: tuple[int, bytes] | None = None,
        parser: FrameParser | None = None,
        hop_ns: bool = False,
    ) -> None:
        if decap not in ("outer", "inner"):
            raise ConfluoError(f"decap '{decap}' is not possible", hint="write outer or inner")
        self.schema = schema if schema is not None else packet_schema()
        self.warnings: list[str] = []
        self.damaged = False
        self._stop = False
        self.on_wait: Callable[[], None] = lambda: None  # called while there is nothing to read
        self.names = list(paths) or ["-"]
        if self.names.count("-") > 1:
            raise FormatError("can be read only once", where="standard input")
        self.number = 0
        self._packets = parser if parser is not None else self._parser(rows, decap == "inner", hop_ns)
        self._follow, self._begun = follow, begun
        self._source: ByteSource | None = None
        self._read = 0  # bytes of the finished files
        self._long = self._bad = self._unknown = 0
        sizes = [_check(name, follow and name is self.names[-1]) for name in self.names]
        self.live = follow or None in sizes
        self.total_bytes = None if self.live else sum(size or 0 for size in sizes)

    def _parser(self, rows: int, inner: bool, hop_ns: bool) -> Packets:
        rows = max(min(rows, BATCH_BYTES // self.schema.layout.row_bytes), 16)
        try:
            return Packets(self.schema.layout, inner=inner, rows=rows, hop_ns=hop_ns)
        except ValueError as e:
            raise SchemaError(str(e), where=f"schema '{self.schema.kind}'") from None

    def __enter__(self) -> Captures:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[Block]:
        first_iface = 0
        for i in range(len(self.names)):
            if self._stop:
                break
            source = self._open(i) if self._source is None else self._source
            capture = Capture(first_iface=min(first_iface, 65535), number=min(self.number + i, MAX_NUMBER))
            yield from self._blocks(source, capture)
            self._report(source, capture)
            first_iface = capture.interfaces
            self.close()
        if self._packets.waiting:
            yield self._packets.take()

    def begin(self) -> None:
        """Wait for the first bytes of the first input.  Raises FormatError unless they start a capture."""
        if self._source is None:
            source = self._open(0)
            start = source.begin()
            if not self._stop and not is_capture(start):
                raise _no_capture(source.name, start != b"")

    def _open(self, i: int) -> ByteSource:
        follow = self._follow and i == len(self.names) - 1
        self._source = ByteSource(self.names[i], follow=follow, begun=self._begun if i == 0 else None)
        return self._source

    def _blocks(self, source: ByteSource, capture: Capture) -> Iterator[Block]:
        packets, live = self._packets, source.live
        while True:
            status = packets.fill(capture)
            if status == "full":
                yield packets.take()
            elif status == "more":
                piece = source.read(PATIENCE) if live else source.read()
                while piece is None:
                    if packets.waiting:
                        yield packets.take()
                    self.on_wait()
                    piece = b"" if self._stop else source.read(PATIENCE)
                capture.feed(piece, not piece)
            else:
                return

    def _report(self, source: ByteSource, capture: Capture) -> None:
        """Add one line to `warnings` about a damaged or irregular file."""
        what: list[str] = []
        if not (capture.kind or source.problem or self._stop):
            if capture.fault and capture.fault != NO_CAPTURE:
                raise FormatError(capture.fault, where=source.name)
            raise _no_capture(source.name, capture.at > 0 or capture.fault != "")
        if source.problem:
            what.append(source.problem)
        if capture.fault and not self._stop:
            what.append(capture.fault)
        if what:
            self.damaged = True
            what.append(_many(capture.frames, "packet before that was read", "packets before that were read"))
        long_caps, bad, _ = capture.counts
        self._long += long_caps
        self._bad += bad
        if bad:
            self.damaged = True
            what.append(_many(bad, "impossible record was left out", "impossible records were left out"))
        if long_caps:
            more = "more captured bytes than were on the wire"
            what.append(_many(long_caps, f"packet claims {more}", f"packets claim {more}"))
        if links := self._packets.unknown_links():
            unknown, self._unknown = self._unknown, self._packets.counts["unknown_link"]
            one = f"packet has a link type that is not parsed ({_names(links)}): it has a time and lengths only"
            several = f"packets have a link type that is not parsed ({_names(links)}): they have times and lengths only"
            what.append(_many(self._unknown - unknown, one, several))
        if what:
            self.warnings.append(f"{source.name}: {'; '.join(what)}")

    def stop(self) -> None:
        """End after the packets read so far.  A signal handler may call it."""
        self._stop = True
        if self._source is not None:
            self._source.stop()

    def close(self) -> None:
        if self._source is not None:
            self._read += self._source.at
            self._source.close()
            self._source = None

    @property
    def bytes_read(self) -> int:
        """Bytes of the files read so far, before decompression."""
        return self._read + (self._source.at if self._source is not None else 0)

    @property
    def counts(self) -> dict[str, int]:
        """Bytes on the wire, packets per parser note (truncated, malformed, ...), irregular records."""
        return {"wire_bytes": self._packets.wire_bytes, **self._packets.counts, "long": self._long, "bad": self._bad}


def _check(name: str, follow: bool) -> int | None:
    """Size of a capture file in bytes; None for a pipe.  Raises FormatError unless it is a readable capture."""
    if name == "-":
        return None
    try:
        mode = os.stat(name).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return None  # reading a pipe would consume its bytes
    except OSError as e:
        raise FormatError(e.strerror or str(e), where=name) from None
    source = ByteSource(name)
    try:
        if not follow and not is_capture(start := source.begin()):
            raise _no_capture(name, start != b"")
        return source.size
    finally:
        source.close()


def _names(links: Sequence[int]) -> str:
    return ", ".join(map(str, links))


def _many(n: int, one: str, several: str) -> str:
    return f"{n} {one if n == 1 else several}"


def _no_capture(name: str, bytes_in_it: bool) -> FormatError:
    what = "is not a pcap or pcapng capture" if bytes_in_it else "is empty: it has not even the header of a capture"
    return FormatError(what, where=name)


def open_captures(
    paths: Sequence[str],
    schema: Schema | None = None,
    *,
    decap: str = "outer",
    follow: bool = False,
    rows: int = ROWS,
    begun: tuple[int, bytes] | None = None,
    parser: FrameParser | None = None,
    hop_ns: bool = False,
) -> Captures:
    """Open capture files (pcap, pcapng, either compressed with gzip or zstd; ``-`` is standard input).

    ``schema``: fields to fill, by name (default: `packet_schema`).
    ``decap``: 'outer' takes IP and transport fields from the outermost IP header, 'inner' from the innermost.
    ``follow``: wait for the last file to grow.
    ``hop_ns``: switches write the nanoseconds of their times, not microseconds.
    ``begun``: (descriptor, first bytes already read) of the first input if it is open already.
    ``parser``: makes the rows of the frames; None: one row for each packet.
    Raises FormatError for a missing file or one that is not a capture, SchemaError for an unusable schema.
    """
    more = {"begun": begun, "parser": parser, "hop_ns": hop_ns}
    return Captures(paths, schema, decap=decap, follow=follow, rows=rows, **more)  # type: ignore[arg-type]
