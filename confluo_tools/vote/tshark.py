"""Reader of packets printed by tshark, as path records: losses from TCP, paths from ICMP time-exceeded messages.

    tshark -r FILE -Y 'tcp or icmp.type == 11 or icmpv6.type == 3' -T fields -E header=y -e frame.time_epoch
        -e ip.src -e ip.dst -e ip.id -e icmp.type -e ipv6.src -e ipv6.dst -e ipv6.hlim -e icmpv6.type -e tcp.srcport
        -e tcp.dstport -e tcp.seq_raw -e tcp.len -e tcp.analysis.retransmission -e tcp.analysis.spurious_retransmission

The columns after the first may be in any order, with others; those of one IP version may be missing.
A message quotes the probe that it answers: its addresses and IP ID (the TTL it left with) follow the message's own in
the same cells, after a comma.  IPv6 has no ID: there the probe itself, found by its sequence number, has the hop limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError
from confluo_tools.formats.reader import Reader, Warn

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.bytestream import ByteStream

NEEDED = ("frame.time_epoch", "tcp.srcport", "tcp.dstport", "tcp.len", "tcp.analysis.retransmission")
FAMILIES = (("ip.src", "ip.dst"), ("ipv6.src", "ipv6.dst"))
PATHS = {"icmp.type": ("ip.id",), "icmpv6.type": ("ipv6.hlim", "tcp.seq_raw")}  # columns that a column requires
OPTIONAL = ("tcp.analysis.spurious_retransmission",)
SLICE = 10_000_000_000  # ns: one record per flow and slice, so that epochs can be separated
MAX_FLOWS = 1 << 22  # flows and slices; cached addresses and probes
HOPS = 16
LONGEST = 1 << 20
COMPLAINTS = 5
LAST = (1 << 63) - 1

Address = tuple[int, bytes]  # its number, and its 16 bytes when it is one of IPv6
Key = tuple[Address, Address, int, int]


class TsharkReader(Reader):
    """One record a flow (in one direction) that sent data, and 10 s; all come at the end of the input."""

    format = "tshark"

    def __init__(
        self, stream: ByteStream, *, warn: Warn | None = None, note: Callable[[str], None] | None = None
    ) -> None:
        from confluo_tools.schema import builtin

        super().__init__(stream.name, warn)
        self.stream, self.schema = stream, builtin("path")
        self._note = note
        self._counts: dict[tuple[int, Key], list[int]] = {}  # (stretch, flow) -> [last time, sent, again, for nothing]
        self._hops: dict[Key, dict[int, Address]] = {}
        self._probes: dict[tuple[Key, str], int] = {}  # (flow, sequence number) -> hop limit
        self._known: dict[str, Address] = {}
        self.bad_lines = self.placeless = 0

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.formats.block_builder import blocks_of

        lines = (line.decode("ascii", "replace").rstrip("\r") for line in self.stream.lines(LONGEST))
        header = next(lines, "").split("\t")
        place = self._columns_of(header)
        for number, line in enumerate(lines, 2):
            if not line:
                continue
            cells = line.split("\t")
            try:
                if len(cells) < len(header):  # editors cut what is empty at the end
                    float(cells[place[0]])
                    cells += [""] * (len(header) - len(cells))
                cells.append("")  # for missing columns
                self._packet([cells[i] for i in place])
            except (ValueError, IndexError, OverflowError, OSError):
                self.bad_lines += 1
                if self.bad_lines <= COMPLAINTS:
                    self.warn(f"line {number}: '{line[:40]}' is not a packet as printed by tshark")
            if len(self._counts) > MAX_FLOWS or len(self._hops) > MAX_FLOWS:
                raise FormatError(f"has more than {MAX_FLOWS:,} flows", where=self.name, hint="split the capture")
        if self.bad_lines > COMPLAINTS:
            self.warn(f"{self.bad_lines} lines do not fit and are left out")
        if self.placeless and self._note is not None:
            hint = "tshark -e ipv6.src -e ipv6.dst prints those of IPv6, -e ip.src -e ip.dst those of IPv4"
            self._note(f"{self.name}: {self.placeless:,} packets have no address in the columns: left out; {hint}")
        if self.stream.damage:
            self.warn(self.stream.damage)
        columns = self._columns()
        yield from blocks_of(self.schema, columns, len(columns["ts"]))

    def _columns_of(self, header: list[str]) -> list[int]:
        # Indexes of the columns that `_packet` takes, -1 for missing ones.
        place = {name: i for i, name in enumerate(header)}
        wanted = [name for family in FAMILIES if any(n in place for n in family) for name in family]
        wanted = [*(wanted or FAMILIES[0]), *NEEDED]
        wanted += [name for column, more in PATHS.items() if column in place for name in more]
        missing = [name for name in wanted if name not in place]
        if missing:
            raise FormatError(f"has no column {missing[0]}", where=self.name, hint=f"tshark -e {missing[0]} prints it")
        names = [*NEEDED, *FAMILIES[0], *FAMILIES[1], *OPTIONAL]
        names += [name for column, more in PATHS.items() for name in (column, *more)]
        return [place.get(name, -1) for name in names]

    def _packet(self, cells: list[str]) -> None:
        time, sport, dport, size, again, src4, dst4, src6, dst6, nothing, icmp, ip_id, icmp6, limit, seq = cells
        if src4 and src6:
            return  # a tunnel
        src, dst = (src4, dst4) if src4 else (src6, dst6)
        if icmp.startswith("11") or icmp6.startswith("3"):
            self._exceeded((icmp or icmp6).split(",")[0], src.split(","), dst.split(","), sport, dport, ip_id, seq)
            return
        if not sport:
            return
        if not src:
            self.placeless += 1
            return
        if "," in src:
            return  # a tunnel
        length = int(size or 0)
        if length <= 0 and (not src6 or not limit or not 1 <= int(limit) <= HOPS):
            return
        flow = self._ip(src), self._ip(dst), _port(sport), _port(dport)
        if length <= 0:
            if len(self._probes) >= MAX_FLOWS:
                self._probes.clear()
            self._probes[flow, seq] = int(limit)
            return
        whole, _, part = time.partition(".")
        ts = int(whole) * 1_000_000_000 + int(part[:9].ljust(9, "0"))
        if not -LAST <= ts <= LAST:
            raise ValueError(time)
        count = self._counts.setdefault((ts // SLICE, flow), [ts, 0, 0, 0])
        count[0] = max(count[0], ts)
        count[1] += 1
        count[2] += bool(again)
        count[3] += bool(again and nothing)

    def _exceeded(
        self, kind: str, src: list[str], dst: list[str], sport: str, dport: str, ip_id: str, seq: str
    ) -> None:
        if kind not in ("11", "3") or len(src) < 2 or not sport:
            return  # it quotes no TCP
        flow = self._ip(src[1]), self._ip(dst[1]), _port(sport), _port(dport)
        ttl = int(ip_id.split(",")[1], 0) if kind == "11" else self._probes.get((flow, seq), 0)
        if 1 <= ttl <= HOPS:
            self._hops.setdefault(flow, {}).setdefault(ttl, self._ip(src[0]))

    def _ip(self, text: str) -> Address:
        found = self._known.get(text)
        if found is None:
            from confluo_tools.formats.block_builder import packed_address

            if len(self._known) >= MAX_FLOWS:
                self._known.clear()
            found = self._known[text] = packed_address(text)
        return found

    def _columns(self) -> dict[str, list[Any]]:
        rows = sorted([(c[0], flow, c[1], c[2], c[3]) for (_, flow), c in self._counts.items()])
        silent = 0, b""
        paths = []
        for _, flow, _, _, _ in rows:
            hops = self._hops.get(flow, {})
            paths.append([hops.get(ttl, silent) for ttl in range(1, max(hops, default=0) + 1)])
        n = len(rows)
        return {
            "ts": [r[0] for r in rows],
            "kind": [1] * n,
            "ip_version": [6 if r[1][0][1] else 4 for r in rows],
            "proto": [6] * n,
            "src_ip": [r[1][0][0] for r in rows],
            "src_ip6": [r[1][0][1] for r in rows],
            "dst_ip": [r[1][1][0] for r in rows],
            "dst_ip6": [r[1][1][1] for r in rows],
            "src_port": [r[1][2] for r in rows],
            "dst_port": [r[1][3] for r in rows],
            "sent": [r[2] for r in rows],
            "lost": [r[3] - r[4] for r in rows],
            "retrans": [r[3] for r in rows],
            "dsack": [r[4] for r in rows],
            "hops": [len(p) for p in paths],
            "path": [[number for number, _ in p] for p in paths],
            "path6": [b"".join([packed or bytes(16) for _, packed in p]) for p in paths],
        }

    def close(self) -> None:
        self.stream.close()


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:
        raise ValueError(text)
    return port
