"""Which sockets are polled: epoll looks again at all that were ready before, and recordings have these polls."""

from __future__ import annotations

from pathlib import Path

from confluo_tools.inputs.open import open_records
from confluo_tools.replay.record.polls import Poll, Polls
from confluo_tools.replay.recording import ConnectionEnd, read_ends
from confluo_tools.replay.recording.kinds import Call, Kind
from netns import Lab
from replay_lab import record, routed


def test_a_poll_looks_at_all_sockets_used_since_the_one_before() -> None:
    polls = Polls()
    assert polls.begins(0, 7) == []
    for sk in (1, 2, 1):
        polls.used(7, sk)
    polls.used(8, 3)
    assert polls.begins(10, 7) == [Poll(10, 1, 0), Poll(10, 2, 0)]
    assert polls.begins(20, 7) == [Poll(20, 1, 0)]  # none was used: the last one may be ready still
    assert polls.begins(20, 8) == [Poll(20, 3, 0)]


def test_a_poll_that_slept_looked_at_what_is_used_then() -> None:
    polls = Polls()
    polls.begins(0, 7)
    polls.ends(1_000_000, 7, 2)
    assert [polls.used(7, sk) for sk in (1, 2, 1)] == [Poll(1_000_000, 1, 2), Poll(1_000_000, 2, 2), None]
    polls.begins(2_000_000, 7)
    polls.ends(2_000_100, 7, 1)  # it did not sleep
    assert polls.used(7, 1) is None


ANSWERS_TWO = """
import selectors, socket, sys
s = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
two = [s.accept()[0] for _ in range(2)]
poll = selectors.EpollSelector()
for c in two:
    c.recv(1)
    poll.register(c, selectors.EVENT_READ)
for c in two:
    c.recv(1)
for c in two:
    c.send(bytes(9000))
while two:
    for key, _ in poll.select():
        if not key.fileobj.recv(100):
            poll.unregister(key.fileobj)
            two.remove(key.fileobj)
"""
ASKS_TWICE = """
import socket, sys
two = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(2)]
for c in two:
    c.send(b"12")
for c in two:
    left = 9000
    while left:
        left -= len(c.recv(left))
    c.close()
"""


def test_each_socket_of_a_server_with_epoll_is_polled_after_its_response(tmp_path: Path) -> None:
    """A poll of a socket with a full buffer is an input: later acknowledgements let the buffer grow."""
    with Lab() as lab:
        logs = record(routed(lab), tmp_path, ASKS_TWICE, server=ANSWERS_TWO)
    ends = read_ends(open_records([str(logs[1])]))
    assert len(ends) == 2
    assert [after_response(end)[:1] for end in ends] == [[Kind.POLL], [Kind.POLL]]
    assert [before_response(end) for end in ends] == [True, True]


def inputs(end: ConnectionEnd) -> list[tuple[int, int]]:
    return list(zip(*end.events.in_order("kind", "call"), strict=True))


def after_response(end: ConnectionEnd) -> list[int]:
    """Kinds of the inputs after the send call."""
    kinds = inputs(end)
    return [kind for kind, _ in kinds[kinds.index((Kind.CALL, Call.SEND)) + 1 :]]


def before_response(end: ConnectionEnd) -> bool:
    """Whether no poll comes before the accept call: the process used other sockets then."""
    kinds = inputs(end)
    return (Kind.POLL, 0) not in kinds[: kinds.index((Kind.CALL, Call.ACCEPT))]
