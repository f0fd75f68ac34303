"""A broker of one topic with one partition that says of it what a test wants, in the few requests of a reader."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
VERSIONS = {PRODUCE: (0, 3), FETCH: (4, 4), LIST_OFFSETS: (1, 2), METADATA: (0, 1), API_VERSIONS: (0, 0)}
UNSUPPORTED, OUT_OF_RANGE, NOT_LEADER = 35, 1, 6  # errors
TOPIC = "t"
FIRST, LATEST = -2, -1  # times of requests for offsets

CODECS = ("", "gzip", "snappy", "lz4", "zstd")  # numbers in batches

Edges = tuple[int, int]  # offset of the first message, offset after the last one
Answer = tuple[int, int, bytes]  # to a fetch: error, offset after the last message, batches


class LyingBroker:
    """Has the messages ``values``, from the offset ``first`` on.  A context manager.

    ``edges()``: what it says about them.  ``answer(offset)``: what it sends from there on.  Both are honest until a
    test sets others.  ``fetches``: offsets that were asked for.  ``unready``: requests for edges that it refuses first.
    """

    def __init__(self, values: Sequence[bytes], first: int = 0) -> None:
        self.values, self.first = values, first
        self.edges: Callable[[], Edges] = self.honest_edges
        self.answer: Callable[[int], Answer] = self.honest_answer
        self.fetches: list[int] = []
        self.unready = 0
        broker = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while len(size := self.rfile.read(4)) == 4:
                    request = self.rfile.read(struct.unpack(">i", size)[0])
                    reply = broker.reply(request)
                    try:
                        self.wfile.write(struct.pack(">i", len(reply)) + reply)
                    except OSError:
                        return

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, block_on_close = True, False

            def handle_error(self, *of: object) -> None:
                pass  # a client hung up

        self._server = Server(("127.0.0.1", 0), Connection)
        self.port = self._server.server_address[1]
        self.topic = f"kafka://127.0.0.1:{self.port}/{TOPIC}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> LyingBroker:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # -- the truth

    @property
    def end(self) -> int:
        return self.first + len(self.values)

    def honest_edges(self) -> Edges:
        return self.first, self.end

    def honest_answer(self, offset: int) -> Answer:
        if not self.first <= offset <= self.end:
            return OUT_OF_RANGE, self.end, b""
        return 0, self.end, batch(offset, self.values[offset - self.first :])

    # -- the protocol

    def reply(self, request: bytes) -> bytes:
        """The answer to a request, with its number."""
        key, version, number, client = struct.unpack_from(">hhih", request)
        body = request[10 + max(client, 0) :]
        made = struct.pack(">i", number)
        if key == API_VERSIONS:
            pairs = [struct.pack(">hhh", k, *span) for k, span in VERSIONS.items()]
            return made + struct.pack(">h", UNSUPPORTED if version else 0) + _array(pairs)
        if key == METADATA:
            return made + self._metadata(version)
        return made + (self._offsets(version, body) if key == LIST_OFFSETS else self._fetched(body))

    def _metadata(self, version: int) -> bytes:
        partition = struct.pack(">hii", 0, 0, 1) + _array([struct.pack(">i", 1)]) * 2
        flag = b"\0" if version else b""
        topic = struct.pack(">h", 0) + _text(TOPIC) + flag + _array([partition])
        rack, controller = (struct.pack(">h", -1), struct.pack(">i", 1)) if version else (b"", b"")
        node = struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">i", self.port) + rack
        return _array([node]) + controller + _array([topic])

    def _offsets(self, version: int, body: bytes) -> bytes:
        (time,) = struct.unpack(">q", body[-8:])  # of the only partition
        low, high = self.edges()
        offset = high if time == LATEST else low
        error = NOT_LEADER if self.unready > 0 else 0
        self.unready -= 1
        partition = struct.pack(">ihqq", 0, error, -1, offset)
        return (struct.pack(">i", 0) if version > 1 else b"") + _array([_text(TOPIC) + _array([partition])])

    def _fetched(self, body: bytes) -> bytes:
        if struct.unpack_from(">i", body, 17) == (0,):
            return struct.pack(">ii", 0, 0)
        wait = struct.unpack_from(">i", body, 4)[0] / 1000
        (offset,) = struct.unpack(">q", body[-12:-4])
        self.fetches.append(offset)
        error, high, batches = self.answer(offset)
        if not batches and not error:
            threading.Event().wait(min(wait, 0.05))
        partition = struct.pack(">ihqqi", 0, error, high, high, 0) + struct.pack(">i", len(batches)) + batches
        return struct.pack(">i", 0) + _array([_text(TOPIC) + _array([partition])])


def batch(
    offset: int, values: Sequence[bytes], *, count: int | None = None, last: int | None = None, codec: str = ""
) -> bytes:
    """A batch of messages.  ``count``, ``last``: how many it says to have, and the distance to its last offset."""
    if not values:
        return b""
    records = b"".join(_record(i, value) for i, value in enumerate(values))
    count = len(values) if count is None else count
    last = len(values) - 1 if last is None else last
    if codec:
        records = compressed(records, codec)
    after_crc = struct.pack(">hiqqqhii", CODECS.index(codec), last, 0, 0, -1, -1, -1, count) + records
    return struct.pack(">qiibI", offset, 9 + len(after_crc), 0, 2, 0) + after_crc


def compressed(data: bytes, codec: str) -> bytes:
    """As Kafka has it in batches."""
    import zlib

    import pyarrow as pa

    if codec == "gzip":
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    return pa.Codec(codec).compress(data, asbytes=True)  # type: ignore[no-any-return]


def _record(number: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    rest, out = value << 1 ^ value >> 63, bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def _array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
