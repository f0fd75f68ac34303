"""What tshark prints of a capture at a host, as path records: losses from TCP, paths from ICMP time-exceeded messages.

    tshark -r FILE -Y 'tcp or icmp.type == 11' -T fields -E header=y -e frame.time_epoch -e ip.src -e ip.dst -e ip.id
        -e icmp.type -e tcp.srcport -e tcp.dstport -e tcp.len -e tcp.analysis.retransmission

The columns may stand in any order after the first, and there may be more.  A message quotes the probe that it answers:
its addresses and IP ID (the TTL it left with) follow the message's own in the same cells, after a comma.  IPv4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.units import try_ip4

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.formats.stream import ByteStream

NEEDED = ("ip.src", "ip.dst", "tcp.srcport", "tcp.dstport", "tcp.len", "tcp.analysis.retransmission")
SLICE = 10_000_000_000  # ns: a record of each flow for each stretch of time, so that epochs can be told apart
MOST = 1 << 22  # flows and stretches of time
HOPS = 16
LONGEST = 1 << 20
COMPLAINTS = 5

Key = tuple[int, int, int, int]


class TsharkReader(Reader):
    """One record a flow (in one direction) that sent data, and 10 s; all come at the end of the input."""

    format = "tshark"

    def __init__(self, stream: ByteStream, *, warn: Warn | None = None) -> None:
        from confluo_tools.schema import builtin

        super().__init__(stream.name, warn)
        self.stream, self.schema = stream, builtin("path")
        self._counts: dict[tuple[int, Key], list[int]] = {}  # (stretch, flow) -> [last time, sent, lost]
        self._hops: dict[Key, dict[int, int]] = {}
        self.bad_lines = 0

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.formats.build import blocks_of

        lines = (line.decode("ascii", "replace").rstrip("\r") for line in self.stream.lines(LONGEST))
        place = {name: i for i, name in enumerate(next(lines, "").split("\t"))}
        missing = [name for name in NEEDED if name not in place]
        if missing:
            raise FormatError(f"has no column {missing[0]}", where=self.name, hint=f"tshark -e {missing[0]} prints it")
        for number, line in enumerate(lines, 2):
            cells = line.split("\t")
            if not line:
                continue
            try:
                self._packet({name: cells[i] if i < len(cells) else "" for name, i in place.items()})
            except (ValueError, IndexError, OverflowError):
                self.bad_lines += 1
                if self.bad_lines <= COMPLAINTS:
                    self.warn(f"line {number}: '{line[:40]}' is no packet as tshark prints them")
            if len(self._counts) > MOST or len(self._hops) > MOST:
                raise FormatError(f"has more than {MOST:,} flows", where=self.name, hint="split the capture")
        if self.stream.damage:
            self.warn(self.stream.damage)
        columns = self._columns()
        yield from blocks_of(self.schema, columns, len(columns["ts"]))

    def _packet(self, cell: dict[str, str]) -> None:
        if cell.get("icmp.type", "").split(",")[0] == "11":
            src, dst = cell["ip.src"].split(","), cell["ip.dst"].split(",")
            if len(src) < 2 or not cell["tcp.srcport"]:
                return  # it quotes no TCP
            ttl = int(cell["ip.id"].split(",")[1], 0)
            if 1 <= ttl <= HOPS:
                flow = _ip(src[1]), _ip(dst[1]), _port(cell["tcp.srcport"]), _port(cell["tcp.dstport"])
                self._hops.setdefault(flow, {}).setdefault(ttl, _ip(src[0]))
            return
        if not cell["tcp.srcport"] or not cell["ip.src"] or "," in cell["ip.src"] or int(cell["tcp.len"] or 0) <= 0:
            return  # IPv6, tunnels, no data
        flow = _ip(cell["ip.src"]), _ip(cell["ip.dst"]), _port(cell["tcp.srcport"]), _port(cell["tcp.dstport"])
        whole, _, part = cell["frame.time_epoch"].partition(".")
        ts = int(whole) * 1_000_000_000 + int(part[:9].ljust(9, "0"))
        count = self._counts.setdefault((ts // SLICE, flow), [ts, 0, 0])
        count[0] = max(count[0], ts)
        count[1] += 1
        count[2] += bool(cell["tcp.analysis.retransmission"])

    def _columns(self) -> dict[str, list[Any]]:
        rows = sorted((count[0], flow, count[1], count[2]) for (_, flow), count in self._counts.items())
        paths = []
        for _, flow, _, _ in rows:
            hops = self._hops.get(flow, {})
            paths.append([hops.get(ttl, 0) for ttl in range(1, max(hops, default=0) + 1)])
        n = len(rows)
        return {
            "ts": [r[0] for r in rows], "kind": [1] * n, "ip_version": [4] * n, "proto": [6] * n,
            "src_ip": [r[1][0] for r in rows], "dst_ip": [r[1][1] for r in rows],
            "src_port": [r[1][2] for r in rows], "dst_port": [r[1][3] for r in rows],
            "sent": [r[2] for r in rows], "lost": [r[3] for r in rows], "retrans": [r[3] for r in rows],
            "hops": [len(p) for p in paths], "path": paths,
        }  # fmt: skip

    def close(self) -> None:
        self.stream.close()


def _ip(text: str) -> int:
    found = try_ip4(text)
    if found is None:
        raise ValueError(text)
    return found


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:
        raise ValueError(text)
    return port
