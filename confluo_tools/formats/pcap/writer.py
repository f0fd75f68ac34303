"""Write records as packets: a classic pcap with nanoseconds, from the bytes kept at capture or from the source.

The field ``raw`` holds the first bytes of each packet when `confluo-capture -s` kept them.  Otherwise
``file_offset`` is the position of the packet in its source capture (decompressed; several sources as if they
were one file), which is opened again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError, UsageError
from confluo_tools.formats.bytestream import open_bytes, unzip
from confluo_tools.formats.detect import PEEK, detect
from confluo_tools.schema.link_types import ETHERNET, link_name

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.pcap.synthesize import SynthesizedWriter
    from confluo_tools.schema import Schema

MAGIC_NS = 0xA1B23C4D
SNAPLEN = 262144
MAX_PACKET = 1 << 26


def open_pcap_writer(
    schema: Schema,
    out: Any,
    *,
    sources: Sequence[str] = (),
    synthesize: bool = False,
    warn: Callable[[str], None] | None = None,
) -> PcapWriter | SynthesizedWriter:
    """The writer of captured packets, or with ``synthesize`` of headers built from the fields."""
    if not synthesize:
        return PcapWriter(schema, out, sources=sources, warn=warn)
    if sources:
        raise UsageError("--source and --synthesize exclude each other", hint="--source writes the captured packets")
    from confluo_tools.formats.pcap.synthesize import SynthesizedWriter

    return SynthesizedWriter(schema, out)


class PcapWriter:
    """Rows of the packet schema as a pcap on ``out``.

    ``sources``: the captures the rows came from, in the order they were captured; by default ``raw`` is used.
    Packets that cannot be written (another link type than the first, not found in the source) are counted
    and reported to ``warn``.
    """

    def __init__(
        self, schema: Schema, out: Any, *, sources: Sequence[str] = (), warn: Callable[[str], None] | None = None
    ) -> None:
        needed = ["ts", "len", "cap_len", "link_type", "file_offset" if sources else "raw"]
        missing = [n for n in needed if n not in schema]
        if missing:
            hint = "give the capture with --source, keep bytes with confluo-capture -s N, "
            hint += "or build headers with --synthesize"
            if sources or missing != ["raw"]:
                hint = "only records of packets, as confluo-capture makes them, become a pcap"
            raise UsageError(f"the records have no field '{missing[0]}'", where="-o pcap", hint=hint)
        self.schema = schema.project(needed)
        self.layout = self.schema.layout
        self.out, self._warn = out, warn
        self._source = CaptureFiles(sources) if sources else None
        self._link = -1
        self.other_link = self.not_found = 0

    def start(self) -> None:
        """Write nothing yet: the header needs the link type of the first packet."""

    def _head(self, link: int) -> None:
        self._link = link
        self.out.write(struct.pack("<IHHiIII", MAGIC_NS, 2, 4, 0, 0, SNAPLEN, link))

    def write(self, block: Block, picks: Picks | None = None) -> None:
        block = block.project(self.layout)
        if picks is not None:
            block = block.take(picks)
        if not block.rows:
            return
        names = self.layout.names
        ts, length, cap, link = (self._column(block, names.index(n)) for n in ("ts", "len", "cap_len", "link_type"))
        if self._source is None:
            raw = block.buffer(names.index("raw"))
            width = self.schema["raw"].type.size
            packets: list[Any] = [raw[i * width : i * width + min(cap[i], width)] for i in range(block.rows)]
        else:
            offset = self._column(block, names.index("file_offset"))
            packets = [None] * block.rows
            for i in sorted(range(block.rows), key=offset.__getitem__):  # forward through a compressed file
                packets[i] = self._source.packet(offset[i], length[i], cap[i])
        if self._link < 0:
            self._head(link[0])
        pieces = []
        for i, data in enumerate(packets):
            if data is None:
                self.not_found += 1
            elif link[i] != self._link:
                self.other_link += 1
            else:
                second, ns = divmod(ts[i], 10**9)
                pieces.append(struct.pack("<IIII", second & 0xFFFFFFFF, ns, len(data), max(length[i], len(data))))
                pieces.append(data)
        self.out.write(b"".join(pieces))

    def _column(self, block: Block, i: int) -> list[int]:
        code = {1: "B", 2: "H", 3: "I", 4: "Q", 8: "q"}[self.schema.columns[i].code]
        values: list[int] = memoryview(bytes(block.buffer(i))).cast(code).tolist()  # type: ignore[call-overload]
        return values

    def flush(self) -> None:
        """Do nothing: no data is buffered."""

    def close(self) -> None:
        if self._link < 0:
            self._head(ETHERNET)
        if self._warn is not None and self.other_link:
            what = f"{self.other_link} packets are left out: their link type is not {link_name(self._link)}"
            self._warn(f"{what}; select one link_type")
        if self._warn is not None and self.not_found:
            self._warn(f"{self.not_found} packets were not found in the source; check that it is the right capture")
        if self._source is not None:
            self._source.close()


class CaptureFiles:
    """The source captures of records; offsets count through all of them."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._files: list[tuple[int, _Capture]] = []
        start = 0
        for i, path in enumerate(paths):
            capture = _Capture(path)
            self._files.append((start, capture))
            if i + 1 < len(paths):
                start += capture.size()

    def packet(self, offset: int, length: int, cap_len: int) -> bytes | None:
        """The captured bytes of the packet at ``offset`` of its file; None when another packet is there."""
        if not offset:
            return None
        for start, capture in reversed(self._files):
            if offset >= start:
                found = capture.record(offset - start, cap_len)
                if found is None or found[0] != length or len(found[1]) != cap_len:
                    return None
                return found[1]
        return None

    def close(self) -> None:
        for _, capture in self._files:
            capture.close()


class _Capture:
    # One capture file.  Plain: read at the offset.  Compressed: read forward; unpack to a temporary file to go back.
    def __init__(self, path: str) -> None:
        self.path = path
        if path == "-":
            raise UsageError("the source capture must be a file", where="--source")
        self._open()
        head = self._stream.peek(PEEK)
        self.kind = detect(head)
        if self.kind not in ("pcap", "pcapng"):
            raise FormatError("is not a pcap or pcapng capture", where=path)
        self._little = head[0] in (0xD4, 0x4D, 0x34) if self.kind == "pcap" else head[8] == 0x4D
        major, minor = struct.unpack("<HH" if self._little else ">HH", head[4:8])
        self._wire_first = self.kind == "pcap" and (major == 543 or minor < 3)
        self._either_first = self.kind == "pcap" and not self._wire_first and minor == 3
        self._header = 24 if head[:4] in (b"\xa1\xb2\xcd\x34", b"\x34\xcd\xb2\xa1") else 16
        self._fd = -1 if self._packed else self._below.fd

    def _open(self) -> None:
        self._below = open_bytes(self.path)
        if self._below.waits:
            self._below.close()
            raise UsageError("the source capture must be a file", where=self.path)
        self._stream = unzip(self._below)
        self._packed = self._stream is not self._below

    def size(self) -> int:
        """Decompressed bytes."""
        if self._fd < 0:
            self._unpack()
        return os.fstat(self._fd).st_size

    def _unpack(self) -> None:
        from tempfile import TemporaryFile

        self.close()
        self._open()
        with TemporaryFile() as out:
            for piece in iter(self._stream.some, b""):
                out.write(piece)
            out.flush()
            self._fd = os.dup(out.fileno())
        self._stream.close()

    def read(self, at: int, n: int) -> bytes:
        if self._fd < 0:
            if at >= self._stream.offset:
                while self._stream.offset < at:
                    if not self._stream.read(min(1 << 20, at - self._stream.offset)):
                        return b""
                return self._stream.peek(n)
            self._unpack()
        return os.pread(self._fd, n, at)

    def record(self, at: int, cap_len: int) -> tuple[int, bytes] | None:
        """(length on the wire, captured bytes) of the record at ``at``; ``cap_len`` for records without it."""
        if self.kind == "pcap":
            head = self.read(at, self._header)
            if len(head) < 16:
                return None
            _, _, cap, wire = struct.unpack_from("<IIII" if self._little else ">IIII", head)
            if self._wire_first or (self._either_first and cap > wire):
                cap, wire = wire, cap
            return self._data(at + self._header, cap, wire)
        return self._block(at, cap_len)

    def _data(self, at: int, cap: int, wire: int) -> tuple[int, bytes] | None:
        if cap > MAX_PACKET:
            return None
        data = self.read(at, cap)
        return (wire, data) if len(data) == cap else None

    def _block(self, at: int, cap_len: int) -> tuple[int, bytes] | None:
        head = self.read(at, 28)
        for order in ("<", ">") if self._little else (">", "<"):  # a later section may have the other byte order
            if len(head) < 16:
                return None
            kind, size = struct.unpack_from(order + "II", head)
            if kind in (2, 6) and size >= 32 and len(head) == 28:
                cap, wire = struct.unpack_from(order + "II", head, 20)
                return self._data(at + 28, cap, wire) if cap <= size - 32 else None
            if kind == 3 and size >= 16:
                wire = struct.unpack_from(order + "I", head, 8)[0]
                return self._data(at + 12, min(wire, size - 16, cap_len), wire)
        return None

    def close(self) -> None:
        if self._fd >= 0 and self._packed:
            os.close(self._fd)
            self._fd = -1
        self._below.close()
