"""Socket calls from their trace events: a call that waits is several pieces, each begun where it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluo_tools.replay.recording.kinds import Call, Note


@dataclass(slots=True)
class CallPiece:
    """A call, or its part between two waits.  ``sk`` 0 and ``bytes`` None: not known yet; ``ts`` is monotonic."""

    ts: int
    call: int
    pid: int
    sk: int = 0
    bytes: int | None = None
    asked: int = 0
    flags: int = 0
    notes: int = 0
    looked: bool = False  # whether it yields or waits at its end is a guess

    @property
    def known(self) -> bool:
        return self.sk != 0 and self.bytes is not None


LOOKS = 16  # new segments after which a send looks for packets that have come
SLEEPS = 100_000  # ns: a call that was away for longer slept until there was room
MAX_PROCESSES = 1 << 16  # that are inside a call


@dataclass(slots=True)
class _OpenSend:
    pieces: list[CallPiece]
    left: int  # bytes left to copy, at the last event
    opens: bool  # whether the last event needed a new segment
    ts: int  # of the last event
    opened: int = 0  # segments since the call last looked for packets that had come


class CallPieces:
    """Follows the calls of each process.  The methods return a piece that begins at this event, if one does."""

    def __init__(self) -> None:
        # Each has at most MAX_PROCESSES: a process may die inside a call.
        self._sends: dict[int, _OpenSend] = {}
        self._recvs: dict[int, tuple[int, int]] = {}  # socket, and when it copied last
        self._socket_of: dict[int, int] = {}  # the socket that a process used last

    def send_chunk(self, ts: int, pid: int, left: int, *, opens: bool) -> CallPiece | None:
        """A process is about to copy into the send queue, ``left`` bytes are to be sent.

        ``opens``: into a new segment.  The kernel begins again at the same place after it waited for room, and, at
        every sixteenth segment, after TCP has processed packets that came in the meantime (tcp_sendmsg_locked).
        """
        call = self._sends.get(pid)
        if call is None:
            piece = CallPiece(ts, Call.SEND, pid, asked=left)
            _limit(self._sends)
            self._sends[pid] = _OpenSend([piece], left, opens, ts)
            return piece
        if left != call.left:
            if call.opens:
                call.opened = 1 if call.opened == LOOKS else call.opened + 1
            call.left, call.opens, call.ts = left, opens, ts
            return None
        before = call.pieces[-1]  # nothing was copied since the last event
        before.bytes = before.asked - left
        before.looked = call.opened == LOOKS
        if before.looked and ts - call.ts < SLEEPS:
            before.notes |= Note.YIELDS
            call.opened = 0
        else:
            before.notes |= Note.WAITS
        call.opens, call.ts = opens, ts
        piece = CallPiece(ts, Call.SEND, pid, asked=left, notes=Note.CONTINUED)
        call.pieces.append(piece)
        return piece

    def send_end(self, ts: int, pid: int, sk: int, result: int, flags: int) -> CallPiece | None:
        _limit(self._socket_of)
        self._socket_of[pid] = sk
        call = self._sends.pop(pid, None)
        if call is None:
            return CallPiece(ts, Call.SEND, pid, sk, result, 0, flags & 0xFFFFFFFF)
        done = 0
        for piece in call.pieces:
            piece.sk, piece.flags = sk, flags & 0xFFFFFFFF
            if piece.bytes is None:  # the last one
                piece.bytes = result - done if result > 0 else result if not done else 0
            done += piece.bytes
        return None

    def recv_chunk(self, ts: int, pid: int, sk: int) -> None:
        """A process has copied from the receive queue."""
        _limit(self._recvs)
        self._recvs[pid] = sk, ts

    def recv_end(self, ts: int, pid: int, sk: int, result: int, flags: int) -> CallPiece:
        """The call, at the time when it copied last: TCP may process packets between the parts that it copies."""
        _limit(self._socket_of)
        self._socket_of[pid] = sk
        of, copied = self._recvs.pop(pid, (0, 0))
        return CallPiece(copied if of == sk else ts, Call.RECV, pid, sk, result, 0, flags & 0xFFFFFFFF)

    def socket_of(self, pid: int) -> int:
        """The socket that a process used last; 0: none."""
        return self._socket_of.get(pid, 0)

    def guess(self, piece: CallPiece) -> bool:
        """Settle a piece of a call that has not ended for long.  Returns whether its socket can be guessed."""
        if piece.bytes is None:
            call = self._sends.get(piece.pid)
            piece.bytes = piece.asked - call.left if call and call.pieces[-1] is piece else 0
            piece.notes |= Note.WAITS
        if not piece.sk:
            piece.sk = self._socket_of.get(piece.pid, 0)
            piece.notes |= Note.GUESSED
        return piece.sk != 0


def _limit(table: dict[int, Any]) -> None:
    if len(table) >= MAX_PROCESSES:
        del table[next(iter(table))]
