"""Write records as packets, from the bytes kept at capture or from the source: pcap or pcapng, with nanoseconds.

The field ``raw`` holds the first bytes of each packet when `confluo-capture -s` kept them.  Otherwise
``file_offset`` is the position of the packet in its source capture (decompressed), which is opened again, and
``file_number`` says which of the captures it is.  Only some captures may be there, and logs made before have no
numbers: a packet is taken from the capture where its lengths and its time are found.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import FormatError, UsageError
from confluo_tools.formats.bytestream import open_bytes, unzip
from confluo_tools.formats.detect import PEEK, detect
from confluo_tools.formats.pcap import pcapng_blocks
from confluo_tools.schema.link_types import ETHERNET, link_name

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.anonymize import AnonymizeChoice
    from confluo_tools.formats.pcap.synthesize import SynthesizedWriter
    from confluo_tools.schema import Schema

MAGIC_NS = 0xA1B23C4D
SNAPLEN = 262144
MAX_PACKET = 1 << 26
MAX_OPEN = 64  # source captures that are open at the same time
MAX_INTERFACES = 1024  # of a source, with clocks that are compared


def open_pcap_writer(
    schema: Schema,
    out: Any,
    *,
    sources: Sequence[str] = (),
    synthesize: bool = False,
    anonymize: AnonymizeChoice | None = None,
    warn: Callable[[str], None] | None = None,
) -> PcapWriter | SynthesizedWriter:
    """The writer of captured packets, or with ``synthesize`` of headers built from the fields."""
    if not synthesize:
        return PcapWriter(schema, out, sources=sources, anonymize=anonymize, warn=warn)
    if sources:
        raise UsageError("--source and --synthesize exclude each other", hint="--source writes the captured packets")
    from confluo_tools.formats.pcap.synthesize import SynthesizedWriter

    return SynthesizedWriter(schema, out)


def open_pcapng_writer(
    schema: Schema,
    out: Any,
    *,
    sources: Sequence[str] = (),
    synthesize: bool = False,
    anonymize: AnonymizeChoice | None = None,
    warn: Callable[[str], None] | None = None,
) -> PcapWriter | SynthesizedWriter:
    """As `open_pcap_writer`, for pcapng; what is synthesized is pcapng in both."""
    if synthesize:
        return open_pcap_writer(schema, out, sources=sources, synthesize=True)
    return PcapngWriter(schema, out, sources=sources, anonymize=anonymize, warn=warn)


class PcapWriter:
    """Rows of the packet schema as a pcap on ``out``.

    ``sources``: the captures the rows came from, best in the order of their numbers; by default ``raw`` is used.
    Packets that cannot be written (another link type than the first, not found in the source) are counted
    and reported to ``warn``.  With ``anonymize``, so are packets with addresses that may be anywhere.
    """

    def __init__(
        self,
        schema: Schema,
        out: Any,
        *,
        sources: Sequence[str] = (),
        anonymize: AnonymizeChoice | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        needed = ["ts", "len", "cap_len", "link_type", "file_offset" if sources else "raw"]
        missing = [n for n in needed if n not in schema]
        if missing:
            hint = "give the capture with --source, keep bytes with confluo-capture -s N, "
            hint += "or build headers with --synthesize"
            if sources or missing != ["raw"]:
                hint = "only records of packets, as confluo-capture makes them, become a pcap"
            raise UsageError(f"the records have no field '{missing[0]}'", where="-o pcap", hint=hint)
        numbered = bool(sources) and "file_number" in schema
        self.schema = schema.project([*needed, "file_number"] if numbered else needed)
        self.layout = self.schema.layout
        self.out, self._warn = out, warn
        self._source = CaptureFiles(sources) if sources else None
        self._anonymizer = anonymize.anonymizer() if anonymize is not None else None
        self._unknown: dict[int, int] = {}  # packets that cannot be made anonymous, by link type
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
            known = "file_number" in names
            number = self._column(block, names.index("file_number")) if known else [-1] * block.rows
            packets = [None] * block.rows
            for i in sorted(range(block.rows), key=lambda i: (number[i], offset[i])):  # forward in a compressed file
                packets[i] = self._source.packet(number[i], offset[i], length[i], cap[i], ts[i])
        found = [i for i, data in enumerate(packets) if data is not None]
        self.not_found += block.rows - len(found)
        if self._anonymizer is not None:
            for i in found:
                packets[i] = self._anonymizer.frame(packets[i], length[i], link[i])
                if packets[i] is None:
                    self._unknown[link[i]] = self._unknown.get(link[i], 0) + 1
            found = [i for i in found if packets[i] is not None]
        if not found:
            return
        if self._link < 0:
            self._head(link[found[0]])
        self.out.write(b"".join(self._packet(link[i], ts[i], length[i], packets[i]) for i in found))

    def _packet(self, link: int, time: int, wire: int, data: bytes) -> bytes:
        if link != self._link:
            self.other_link += 1
            return b""
        second, ns = divmod(time, 10**9)
        return struct.pack("<IIII", second & 0xFFFFFFFF, ns, len(data), max(wire, len(data))) + data

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
        if self._warn is not None and self._unknown:
            names = ", ".join(link_name(link) for link in sorted(self._unknown))
            what = "packets are left out: addresses may be anywhere in frames of their link type"
            self._warn(f"{sum(self._unknown.values())} {what} ({names})")
        if self._source is not None:
            self._source.close()


class PcapngWriter(PcapWriter):
    """As `PcapWriter`, a pcapng: it has an interface for each link type, so none is left out."""

    def _head(self, link: int) -> None:
        self._link = link
        self._numbers: dict[int, int] = {}
        self.out.write(pcapng_blocks.section())

    def _packet(self, link: int, time: int, wire: int, data: bytes) -> bytes:
        known = link in self._numbers
        number = self._numbers.setdefault(link, len(self._numbers))
        return (b"" if known else pcapng_blocks.interface(link)) + pcapng_blocks.packet(number, time, wire, data)


class CaptureFiles:
    """The source captures of records, in the order of their numbers, or only some of them.

    A path that is '' is of one that is not there.  Where there are many, not all are open at the same time.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._here = [i for i, path in enumerate(paths) if path]
        self._open: dict[int, _Capture] = {}
        for i in self._here[:MAX_OPEN]:
            self._file(i)
        self._latest = 0  # number of the file that the last packet was found in
        self._starts: list[int] | None = None
        self._run = 0  # number of the first file of the run that a packet was found in

    def packet(self, number: int, offset: int, length: int, cap_len: int, time: int) -> bytes | None:
        """The captured bytes of the packet at ``offset`` of its capture; None when another packet is there.

        ``number`` of the capture, -1: unknown.  Where that is another one, or is not there, all captures are tried.
        Where the clock of a pcapng interface is not known, or may differ in a later section, lengths decide.
        """
        if not offset:
            return None
        known = 0 <= number < len(self._paths)
        if known and not self._paths[number]:
            return None
        likely = number if known else self._latest
        sure = 0 if len(self._paths) == 1 else max(number, 0)
        others = () if known and len(self._here) > MAX_OPEN else self._here
        for i in (likely, *(i for i in others if i != likely)):
            if (data := self._at(i, offset, length, cap_len, time, i == sure)) is not None:
                self._latest = i
                return data
        return (
            self._in_run(offset, length, cap_len, time)
            if number < 0 and 1 < len(self._paths) == len(self._here)
            else None
        )

    def _in_run(self, offset: int, length: int, cap_len: int, time: int) -> bytes | None:
        """The packet where all captures of a run count as one file: logs made before file_number have it so."""
        if self._starts is None:
            self._starts = [0]
            for i in self._here[:-1]:
                self._starts.append(self._starts[-1] + self._file(i).size())
        for run in (self._run, *(i for i in self._here if i != self._run)):
            at = self._starts[run] + offset
            i = next(i for i in reversed(self._here) if at >= self._starts[i])
            if i > run and (data := self._at(i, at - self._starts[i], length, cap_len, time, not run)) is not None:
                self._run = run
                return data
        return None

    def _at(self, i: int, offset: int, length: int, cap_len: int, time: int, sure: bool) -> bytes | None:
        """The packet at ``offset`` of file ``i``; one without a time only if the file is ``sure``."""
        if not self._paths[i]:
            return None
        capture = self._file(i)
        found = capture.record(offset, cap_len)
        if found is None or (found.wire, len(found.data)) != (length, cap_len):
            return None
        timed = found.time is not None and not (len(self._paths) == 1 and capture.kind == "pcapng")
        right = abs((found.time or 0) - time) <= 1 if timed else sure  # 1 ns: rounded
        return found.data if right else None

    def _file(self, i: int) -> _Capture:
        if i not in self._open:
            if len(self._open) >= MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[i] = _Capture(self._paths[i])
        return self._open[i]

    def close(self) -> None:
        for capture in self._open.values():
            capture.close()


class CapturedPacket(NamedTuple):
    """A packet as its capture has it: length on the wire, captured bytes, time in ns (None: unknown)."""

    wire: int
    data: bytes
    time: int | None


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
        self._tick = 1 if head[:4] in (b"\xa1\xb2\x3c\x4d", b"\x4d\x3c\xb2\xa1") else 1000  # ns
        self._fd = -1 if self._packed else self._below.fd
        self._clocks = self._interfaces() if self.kind == "pcapng" else {}

    def _interfaces(self) -> dict[int, tuple[int, int]]:
        """{number: (ticks a second, seconds to add)} of the interfaces before the first packet of a pcapng file."""
        order, at = "<" if self._little else ">", 0
        found: dict[int, tuple[int, int]] = {}
        while len(found) < MAX_INTERFACES:
            head = self.read(at, 8)
            kind, size = struct.unpack(order + "II", head) if len(head) == 8 else (0, 0)
            if kind not in (0x0A0D0D0A, 1) or (at and kind != 1) or not 12 <= size <= MAX_PACKET:
                break
            if kind == 1:
                found[len(found)] = _clock(self.read(at + 16, size - 20), order)
            at += size
        return found

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

    def record(self, at: int, cap_len: int) -> CapturedPacket | None:
        """The packet of the record at ``at``; ``cap_len``: its captured bytes, for records without their number."""
        if self.kind == "pcap":
            head = self.read(at, self._header)
            if len(head) < 16:
                return None
            second, part, cap, wire = struct.unpack_from("<IIII" if self._little else ">IIII", head)
            if self._wire_first or (self._either_first and cap > wire):
                cap, wire = wire, cap
            return self._data(at + self._header, cap, wire, second * 10**9 + part * self._tick)
        return self._block(at, cap_len)

    def _data(self, at: int, cap: int, wire: int, time: int | None) -> CapturedPacket | None:
        if cap > MAX_PACKET:
            return None
        data = self.read(at, cap)
        return CapturedPacket(wire, data, time) if len(data) == cap else None

    def _block(self, at: int, cap_len: int) -> CapturedPacket | None:
        head = self.read(at, 28)
        for order in ("<", ">") if self._little else (">", "<"):  # a later section may have the other byte order
            if len(head) < 16:
                return None
            kind, size = struct.unpack_from(order + "II", head)
            if kind in (2, 6) and size >= 32 and len(head) == 28:
                port, high, low, cap, wire = struct.unpack_from(order + "IIIII", head, 8)
                clock = self._clocks.get(port & 0xFFFF if kind == 2 else port)
                time = None if clock is None else clock[1] * 10**9 + (high << 32 | low) * 10**9 // clock[0]
                return self._data(at + 28, cap, wire, time) if cap <= size - 32 else None
            if kind == 3 and size >= 16:
                wire = struct.unpack_from(order + "I", head, 8)[0]
                return self._data(at + 12, min(wire, size - 16, cap_len), wire, None)
        return None

    def close(self) -> None:
        if self._fd >= 0 and self._packed:
            os.close(self._fd)
            self._fd = -1
        self._below.close()


def _clock(options: bytes, order: str) -> tuple[int, int]:
    """(ticks a second, seconds to add) of an interface with these options."""
    ticks, more, at = 10**6, 0, 0
    while at + 4 <= len(options):
        code, size = struct.unpack_from(order + "HH", options, at)
        value = options[at + 4 : at + 4 + size]
        if code == 9 and size == 1:
            ticks = 1 << (value[0] & 127) if value[0] & 128 else 10 ** value[0]
        elif code == 14 and size == 8 and len(value) == 8:
            (more,) = struct.unpack(order + "q", value)
        if code == 0:
            break
        at += 4 + -(-size // 4) * 4
    return ticks, more
