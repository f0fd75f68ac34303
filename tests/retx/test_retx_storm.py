"""confluo-retx when there is too much: what is lost is counted and said, memory is bounded, counters stay right."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nic_lab
import retx_lab as lab
from confluo_tools.core.retx.sock_diag_poller import SockDiagPoller
from confluo_tools.kernel import tracefs
from confluo_tools.retx import sock_diag
from confluo_tools.schema import builtin
from netns import Lab, Space

LAYOUT = builtin("retx").layout
# id, sport, dport, family, saddr, daddr, saddr_v6, daddr_v6, err, bytes, skaddr: Linux 6.18
FORMAT = (77, 28, 30, 32, 34, 38, 42, 58, 76, 80, 16)
EVENT = 80


@pytest.fixture
def net() -> Iterator[tuple[Space, Space]]:
    with Lab() as made:
        yield lab.net(made)
    nic_lab.end_all()


class Fed:
    """An agent with ends and traces written by the test; its queries go to the kernel."""

    def __init__(self, **more: Any) -> None:
        self.ends, ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.trace, trace = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trace.setblocking(False)
        self._keep = [ends, trace, sock_diag._diag(), sock_diag._diag()]
        more = {"flows": 4096, "settle": 0} | more
        self.agent = SockDiagPoller(
            LAYOUT,
            ends=ends.fileno(),
            ask=self._keep[2].fileno(),
            dump=self._keep[3].fileno(),
            traces=[trace.fileno()],
            formats=[FORMAT],
            **more,
        )

    def __enter__(self) -> Fed:
        return self

    def __exit__(self, *exc: object) -> None:
        for one in (self.ends, self.trace, *self._keep):
            one.close()

    def rows(self) -> list[dict[str, Any]]:
        found = []
        while True:
            block = self.agent.step()
            if block is not None:
                found += [{n: block.get(i, r) for i, n in enumerate(LAYOUT.names)} for r in range(block.rows)]
            if not self.agent.more:
                return found


def event(source: int, sport: int, err: int = 0, number: int = 77, family: int = 2, sk: int = 0) -> bytes:
    body = bytearray(EVENT)
    struct.pack_into("H", body, 0, number)
    struct.pack_into("=HHH4s4s", body, 28, sport, 5001, family, source.to_bytes(4, "big"), b"\x0a\x63\x00\x02")
    struct.pack_into("Q", body, 16, sk)
    struct.pack_into("i", body, 76, err)
    return bytes(body)


def page(pieces: list[bytes]) -> bytes:
    data = b"".join(pieces)
    return (struct.pack("QQ", time.monotonic_ns(), len(data)) + data).ljust(4096, b"\0")


def entry(body: bytes) -> bytes:
    """An event as the ring buffer has it."""
    return struct.pack("I", len(body) // 4 | 5 << 5) + body


def end_message(
    sport: int,
    retrans: int,
    *,
    dsack: int = 0,
    data: int = 100,
    cookie: int = 1,
    dport: int = 5001,
    state: int = 7,
    size: int = 248,
) -> bytes:
    info = bytearray(size)
    for at, value in ((100, retrans), (156, data), (216, dsack)):
        if at + 4 <= size:
            struct.pack_into("I", info, at, value)
    body = struct.pack(
        "=BBBBHH16s16sIQIIIII",
        2,
        state,
        0,
        0,
        socket.htons(sport),
        socket.htons(dport),
        b"\x0a\x63\x00\x01",
        b"\x0a\x63\x00\x02",
        0,
        cookie,
        0,
        0,
        0,
        0,
        0,
    )
    attributes = struct.pack("HHB3x", 5, 10, 6) + struct.pack("HH", 4 + size, 2) + bytes(info)
    return struct.pack("IHHII", 16 + len(body) + len(attributes), 20, 0, 0, 0) + body + attributes


def memory() -> int:
    """Without pages of files: the kernel takes and brings those as it likes."""
    with open("/proc/self/statm") as f:
        _, resident, of_files, *_ = map(int, f.read().split())
    return (resident - of_files) * 4096


def test_a_million_events_are_counted_in_bounded_memory() -> None:
    """A million flows, 4,096 of them followed: the counts include all.

    A flow is asked for after a second.  By then, thousands of others have come that there is no room for.
    """
    pages = 20_000
    per_page = 50
    with Fed(settle=1_000_000_000) as fed:
        fed.rows()
        before = memory()

        def feed() -> None:
            for number in range(pages):
                base = number * per_page
                fed.trace.send(page([entry(event(0x0A000000 + base + k, 1000)) for k in range(per_page)][:48]))

        thread = threading.Thread(target=feed)
        thread.start()
        most = 0
        while thread.is_alive() or fed.agent.counts["events"] < pages * 48:
            assert fed.rows() == []
            most = max(most, memory())
        thread.join()
        counts = fed.agent.counts
        assert counts["events"] == 960_000
        assert counts["foreign"] + counts["excess"] <= 960_000
        assert counts["excess"] > 0
        assert fed.agent.following <= 4096
        assert most - before < 8 << 20


def test_what_the_buffers_had_no_room_for_is_counted_and_the_totals_are_right(
    net: tuple[Space, Space], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real retransmissions without a reader: traced + not traced = what the kernel counted, for each flow, too."""
    a, b = net
    monkeypatch.setattr(tracefs, "BUFFER", 4)
    lab.drop(b, "numgen inc mod 5 == 4")
    said: list[str] = []
    with sock_diag.open_watch(follow=True, trace="always", netns=a.name, tell=said.append) as watch:
        watch.begin()
        with lab.Server(b):
            truth = lab.at_once(partial(lab.transfer, a, "10.77.0.2", 100_000) for _ in range(40))
        assert sum(t.retrans for t in truth.values()) > 600
        threading.Timer(0.5, watch.stop).start()
        sums: dict[int, Counter[str]] = {}
        for block in watch:
            for r in range(block.rows):
                row = {n: block.get(i, r) for i, n in enumerate(LAYOUT.names)}
                sums.setdefault(row["src_port"], Counter()).update({n: row[n] for n in lab.COUNTED})
        counts = watch.counts
    assert counts["untraced"] > 0
    assert any(f"{counts['untraced']} retransmissions were not traced one by one" in line for line in said)
    mine = {p: s for p, s in sums.items() if p in truth}
    assert {p: s["retrans"] for p, s in mine.items()} == {p: t.retrans for p, t in truth.items() if t.retrans}
    assert all(s["events"] <= s["retrans"] for s in sums.values())
    assert counts["kernel_retrans"] == counts["retrans"]
    everywhere = counts["events"] + counts["untraced"]  # tracing sees the other namespace, too, and maybe others
    assert everywhere - counts["foreign"] >= counts["kernel_retrans"] - counts["untraced"]
    assert counts["traced"] < counts["retrans"] <= counts["traced"] + counts["untraced"]


def test_ends_that_were_not_heard_are_counted_and_made_good(
    net: tuple[Space, Space], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of a few messages: every end is heard or counted; a flow that was known to live has gone."""
    a, b = net
    monkeypatch.setattr(sock_diag, "RECEIVE", 2000)
    lab.drop(b, "numgen inc mod 8 == 7")
    said: list[str] = []
    rows: list[dict[str, Any]] = []
    go_on, paused = threading.Event(), threading.Event()

    def follow() -> None:
        for block in watch:
            rows.extend({n: block.get(i, r) for i, n in enumerate(LAYOUT.names)} for r in range(block.rows))
            if any(r["event"] == 1 for r in rows) and not paused.is_set():
                paused.set()
                go_on.wait()

    with sock_diag.open_watch(follow=True, netns=a.name, interval=0.3, tell=said.append) as watch, lab.Server(b):
        watch.begin()
        thread = threading.Thread(target=follow)
        thread.start()
        living = [lab.connect(a, "10.77.0.2") for _ in range(30)]
        for s in living:
            s.sendall(bytes(40_000))
        assert paused.wait(20)
        time.sleep(1)
        known = {r["cookie"] for r in rows}
        for s in living:
            lab.settle(s)
        truth = {s.getsockname()[1]: lab.tcp_info(s) for s in living}
        for s in living:
            s.close()
        time.sleep(0.3)
        go_on.set()
        end = time.monotonic() + 20
        while time.monotonic() < end and not known <= {r["cookie"] for r in rows if r["event"] in (3, 4)}:
            time.sleep(0.05)
        watch.stop()
        thread.join()
        counts = watch.counts
    mine = [r for r in rows if r["src_port"] in truth]
    heard = {r["cookie"] for r in mine if r["event"] == 3}
    gone = {r["cookie"] for r in mine if r["event"] == 4}
    lossy = {t.cookie for t in truth.values() if t.retrans}
    assert counts["lost_ends"] > 0
    assert counts["lost_ends"] + len([r for r in rows if r["event"] == 3]) >= len(lossy)
    assert len(heard) < len(lossy)
    assert known <= heard | gone
    assert not heard & gone
    assert any("ends of sockets were missed" in line for line in said)
    for t in truth.values():
        sums = lab.totals(mine, "cookie").get(t.cookie, Counter())
        assert sums["retrans"] <= t.retrans
        if t.cookie in heard:
            assert sums["retrans"] == t.retrans


def test_a_queue_that_overflows_is_said_by_the_command(net: tuple[Space, Space], tmp_path: Any) -> None:
    """The counters stand in the log's folder for confluo-info, and losses are in the last line."""
    a, b = net
    lab.drop(b)
    agent = lab.retx(a, "-w", tmp_path / "x.ml")
    with lab.Server(b):
        lab.at_once(partial(lab.transfer, a, "10.77.0.2", 50_000) for _ in range(5))
    time.sleep(0.3)
    _, _, said = agent.end()
    assert b"0 ends not heard, 0 not traced" in said
    from confluo_tools.multilog.capture_statistics import captures

    (note,) = captures(tmp_path / "x.ml")
    assert (note["ends_not_heard"], note["not_traced"], note["ended"]) == (0, 0, "signal")
    assert note["retransmissions"] == note["traced"]


def test_a_log_that_is_written_for_long_takes_no_more_memory(tmp_path: Any) -> None:
    """300,000 records of an agent: 39 MB of files, few of them in its memory."""
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.core.block.block import Block

    schema = builtin("retx")

    def mapped() -> int:
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("RssFile")) * 1024

    with LogOutput(
        str(tmp_path / "x.ml"),
        schema,
        append=False,
        extra_fields=(),
        index=None,
        sync="none",
        lanes=4,
        views=True,
        small=True,
    ) as out:
        block = Block.wrap(schema.layout, 1000, [os.urandom(1000 * c.size * c.count) for c in schema.columns])
        before, most = mapped(), 0
        for _ in range(300):
            out.write(block, None)
            most = max(most, mapped())
    assert most - before < 12 << 20
    from confluo_tools import multilog

    with multilog.open(tmp_path / "x.ml", readonly=True) as log:
        assert log.version().rows == 300_000
        for block_ in log.blocks():
            assert bytes(block_.buffer(0)[:8000]) == bytes(block.buffer(0))
            break


def test_late_dsacks_come_off_the_next_losses() -> None:
    with Fed() as fed:
        fed.ends.send(end_message(1, 5, dsack=2))
        fed.ends.send(end_message(2, 3, dsack=7, cookie=2))
        found = {r["src_port"]: r for r in fed.rows()}
        assert (found[1]["lost"], found[1]["retrans"], found[1]["dsack"], found[1]["sent"]) == (3, 5, 2, 100)
        assert (found[2]["lost"], found[2]["retrans"], found[2]["dsack"]) == (0, 3, 7)


def test_traced_events_go_to_the_socket_that_ended() -> None:
    """What failed before TCP counted it, other events and other families are none."""
    with Fed() as fed:
        mine = [entry(event(0x0A630001, 9)) for _ in range(3)]
        other = [entry(event(0x0A630001, 9, err=e)) for e in (-16, -11, -12, -22)]
        other += [entry(event(0x0A630001, 9, number=78)), entry(event(0x0A630001, 9, family=1))]
        fed.trace.send(page([*mine[:1], *other, *mine[1:]]))
        fed.trace.send(page([entry(event(0x0A630001, 9, err=-105))]))  # counted, then dropped by our own host
        fed.ends.send(end_message(9, 4))
        (row,) = fed.rows()
        assert (row["events"], row["retrans"], fed.agent.counts["events"]) == (4, 4, 4)


def test_events_of_a_socket_whose_predecessor_has_not_ended_yet() -> None:
    """The same addresses and ports: what the kernel has elsewhere is another socket."""
    with Fed(settle=10**15) as fed:  # no queries
        fed.trace.send(page([entry(event(0x0A630001, 9, sk=100)) for _ in range(3)]))
        fed.ends.send(end_message(9, 2, cookie=1))
        first = fed.rows()
        fed.trace.send(page([entry(event(0x0A630001, 9, sk=200)) for _ in range(4)]))
        fed.trace.send(page([entry(event(0x0A630001, 9, sk=300)) for _ in range(5)]))
        assert fed.rows() == []
        fed.ends.send(end_message(9, 4, cookie=2))
        fed.ends.send(end_message(9, 5, cookie=3))
        told = {r["cookie"]: (r["retrans"], r["events"]) for r in fed.rows()}
        assert [(r["retrans"], r["events"]) for r in first] == [(2, 2)]
        assert told == {3: (5, 5), 2: (4, 4)}


PIECES = st.one_of(
    st.tuples(st.just("event"), st.integers(0, 3)),
    st.tuples(st.just("long"), st.integers(0, 3)),  # length in a word of its own
    st.tuples(st.just("discarded"), st.integers(8, 60)),
    st.tuples(st.sampled_from(["extend", "stamp"]), st.integers(0, 1 << 20)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=30))
def test_pages_of_any_pieces_are_read_as_they_were_written(pieces: list[tuple[str, int]]) -> None:
    want: Counter[int] = Counter()
    data = []
    for kind, n in pieces:
        if kind in ("event", "long"):
            want[n + 10] += 1
            body = event(0x0A630001, n + 10)
            data.append(entry(body) if kind == "event" else struct.pack("II", 3 << 5, len(body) + 4) + body)
        elif kind == "discarded":
            data.append(struct.pack("II", 29 | 7 << 5, n - n % 4) + bytes(n - n % 4 - 4))
        else:
            data.append(struct.pack("II", (30 if kind == "extend" else 31) | 9 << 5, n))
    with Fed() as fed:
        fed.trace.send(page(data))
        for port, n in want.items():
            fed.ends.send(end_message(port, n, cookie=port))
        assert {r["src_port"]: r["events"] for r in fed.rows()} == want


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=4096), st.lists(st.binary(min_size=1, max_size=400), max_size=8), st.data())
def test_nonsense_is_survived(trace: bytes, ends: list[bytes], data: st.DataObject) -> None:
    """Any bytes, and whole messages with a byte changed or cut off."""
    whole = bytearray(end_message(5, 3))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = end_message(5, 3)[: data.draw(st.integers(1, 335))]
    some = bytearray(page([entry(event(0x0A630001, 9)) for _ in range(48)]))
    some[data.draw(st.integers(0, len(some) - 1))] = data.draw(st.integers(0, 255))
    with Fed(flows=16) as fed:
        for message in (*ends, bytes(whole), cut):
            fed.ends.send(message)
        for one in (trace, bytes(some)):
            if one:
                fed.trace.send(one)
        for row in fed.rows():
            assert row["event"] in (3, 4)
            assert row["lost"] <= row["retrans"]
        assert fed.agent.following <= 16


def test_more_sockets_than_are_followed_are_told_when_they_end() -> None:
    with Fed(flows=16) as fed:
        for port in range(200):
            fed.ends.send(end_message(port + 1, port + 1, cookie=port + 1))
            if port % 50 == 49:
                rows = fed.rows()
                assert [r["retrans"] for r in rows] == list(range(port - 48, port + 2))


def test_formats_that_are_not_understood_are_refused() -> None:
    good = "name: x\nID: 9\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n" + "".join(
        f"\tfield:{kind};\toffset:{at};\tsize:{size};\tsigned:0;\n"
        for kind, at, size in (
            ("__u16 sport", 8, 2),
            ("__u16 dport", 10, 2),
            ("__u16 family", 12, 2),
            ("__u8 saddr[4]", 14, 4),
            ("__u8 daddr[4]", 18, 4),
            ("__u8 saddr_v6[16]", 22, 16),
            ("__u8 daddr_v6[16]", 38, 16),
        )
    )
    assert tracefs.event_format(good) == (9, 8, 10, 12, 14, 18, 22, 38, 0, 54, 0)
    for bad in (good.replace("saddr_v6", "other"), good.replace("ID: 9", ""), good.replace("size:16", "size:15")):
        with pytest.raises((ValueError, KeyError)):
            tracefs.event_format(bad)
    with pytest.raises((ValueError, KeyError)):
        tracefs.page_header("field: u64 timestamp;\toffset:0;\tsize:4;")
    with pytest.raises(ValueError, match="format"):
        SockDiagPoller(LAYOUT, ends=-1, ask=0, dump=0, formats=[(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0)])
    with pytest.raises(ValueError, match="layout"):
        SockDiagPoller(builtin("path").layout, ends=-1, ask=0, dump=0)


def test_the_share_of_a_core_is_kept(net: tuple[Space, Space]) -> None:
    """A watch that finds ever more work: rounds come later."""
    a, _ = net
    with sock_diag.open_watch(follow=True, trace="never", netns=a.name, cpu=0.01, interval=0.01, seconds=3) as watch:
        watch.begin()
        real, start = watch.agent, time.process_time()

        class Busy:
            more = True

            def step(self) -> None:
                end = time.process_time() + 0.005
                while time.process_time() < end:
                    pass

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        watch.agent = Busy()  # type: ignore[assignment]
        for _ in watch._live():
            pass
        used = time.process_time() - start
        assert used < 0.03 + 0.02 + 0.02  # its share, what may be used at once, and one round
        assert watch.late > 1
    assert os.getpid()
