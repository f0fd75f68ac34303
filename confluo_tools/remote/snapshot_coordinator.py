"""Snapshot coordinator: connects to all hosts, then freezes and thaws in one round trip each.  Paper: Algorithm 1.

All logs, local and remote, are frozen before the first is thawed.  If a freeze ended before its thaw, the snapshot is
discarded and taken again with a longer deadline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluo_tools.core.multilog.freeze import MAX_LOGS, LogFreeze
from confluo_tools.core.multilog.snapshot_round import HostReply, SnapshotRound
from confluo_tools.errors import ConfluoError, StoreError, UsageError
from confluo_tools.multilog import Log
from confluo_tools.multilog.snapshot import LogCut, MissingLog, Snapshot, check_name
from confluo_tools.remote import frame_codec
from confluo_tools.remote.address import Address
from confluo_tools.remote.connect import Connection, RemoteError, RemoteShell, begin, close

MAX_DEADLINE = 60_000_000_000  # ns: the core breaks longer freezes
GROWTH = 4  # of the deadline, from one try to the next
TRIES = 5


class Timing(NamedTuple):
    """ns until all were frozen, until all were thawed, from freeze to thaw on each host; number of tries."""

    freeze: int
    total: int
    hosts: dict[str, int]
    tries: int


class _Named:
    # A log by the name that was given; path, uuid and kind once it is open.
    def __init__(self, text: str, address: Address | None) -> None:
        self.text, self.address = text, address
        self.path, self.uuid, self.kind = text, "", ""


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


class SnapshotCoordinator:
    """Takes snapshots of ``names`` (PATH or HOST:PATH); ``here`` is the name of this host.

    The constructor connects to all hosts in parallel; the connections stay open from one snapshot to the next.
    ``partial``: skip hosts and logs that cannot be reached, as long as any is left: see ``missing``.
    Raises RemoteError, StoreError, UsageError.
    """

    def __init__(
        self, names: Sequence[tuple[str, Address | None]], shell: RemoteShell, here: str = "", *, partial: bool = False
    ) -> None:
        self.partial, self.here, self.shell = partial, here, shell
        self.missing: list[MissingLog] = []
        self.timing = Timing(0, 0, {}, 0)
        self._named = [_Named(text, address) for text, address in names]
        self._peers: list[tuple[Connection, list[_Named]]] = []
        self._logs: list[Log] = []
        self._local: list[_Named] = []
        try:
            self._open_local()
            self._open_remote()
            self._check_names()
            self._cut = LogFreeze([log.control for log in self._logs]) if self._logs else None
            self._round = self._new_round()
        except BaseException:
            self.close()
            raise

    # -- opening

    def _lost(self, named: Sequence[_Named], problem: ConfluoError) -> None:
        # These logs cannot be read: an error, unless a partial snapshot is allowed.
        if not self.partial or len(named) == len(self._named):
            raise problem
        for one in named:
            self.missing.append(MissingLog(one.text, problem.what if problem.where else str(problem)))
            self._named.remove(one)

    def _open_local(self) -> None:
        for named in [n for n in self._named if n.address is None]:
            try:
                log = Log(named.path)
                if not log.control.writable:
                    raise StoreError("cannot be frozen", where=named.path, hint="freezing needs write permission")
            except ConfluoError as e:
                self._lost([named], e)
                continue
            named.path, named.uuid, named.kind = os.path.abspath(named.path), log.uuid.hex(), log.schema.kind
            self._logs.append(log)
            self._local.append(named)
        if len(self._logs) > MAX_LOGS:
            raise UsageError(f"{len(self._logs)} logs of one host; at most {MAX_LOGS} are possible")

    def _open_remote(self) -> None:
        hosts: dict[str, list[_Named]] = {}
        for named in self._named:
            if named.address is not None:
                hosts.setdefault(named.address.host, []).append(named)
        groups = list(hosts.values())
        for group in groups:
            if len(group) > MAX_LOGS:
                where = group[0].address.label if group[0].address is not None else ""
                raise UsageError(f"{len(group)} logs of one host; at most {MAX_LOGS} are possible", where=where)
        peers = begin([group[0].address for group in groups if group[0].address is not None], self.shell)
        try:
            for i, (peer, group) in enumerate(zip(peers, groups, strict=True)):
                if isinstance(peer, Connection):
                    try:
                        paths = [n.address.path for n in group if n.address is not None]
                        peer.send(frame_codec.frame(frame_codec.OPEN, {"logs": paths}))
                    except RemoteError as e:
                        peers[i] = e
            for peer, group in zip(peers, groups, strict=True):
                try:
                    if isinstance(peer, RemoteError):
                        raise peer
                    peer.greet()
                    self._opened(peer, group)
                except RemoteError as e:
                    if isinstance(peer, Connection):
                        peer.close()
                    self._lost(group, e)
        except BaseException:
            close(peers)
            raise

    def _opened(self, peer: Connection, group: list[_Named]) -> None:
        _, message = peer.receive(frame_codec.OPENED, wait=self.shell.wait)
        try:
            entries = frame_codec.get(message, "logs", list)
            if len(entries) != len(group) or not all(isinstance(e, dict) for e in entries):
                raise ValueError("invalid 'logs' in message")
            here = []
            for named, entry in zip(group, entries, strict=True):
                problem = frame_codec.get(entry, "error", dict, None)
                if problem is not None:
                    self._lost([named], peer.reported(problem))
                    here.append((named, False))
                    continue
                named.uuid, named.kind = (frame_codec.get(entry, key, str)[:256] for key in ("uuid", "kind"))
                path = frame_codec.get(entry, "path", str)
                assert named.address is not None
                named.path = named.address.path
                if not named.path.startswith("/") and 0 < len(path) <= 4096 and "\0" not in path:
                    named.path = path
                if len(named.uuid) != 32 or any(c not in "0123456789abcdef" for c in named.uuid):
                    raise ValueError("invalid 'uuid' in message")
                here.append((named, True))
        except ValueError as e:
            raise peer.protocol_error(str(e)) from None
        if peer.waiting:
            raise peer.protocol_error("an answer before a request")
        kept = [named for named, good in here if good]
        if kept:
            self._peers.append((peer, kept))
        else:
            peer.close()

    def _check_names(self) -> None:
        seen: dict[str, _Named] = {}
        for named in self._named:
            other = seen.setdefault(named.uuid, named)
            if other is not named:
                raise UsageError("are the same log", where=f"{other.text}, {named.text}")
            check_name(self._host(named))
            if not _is_text(named.path):
                raise UsageError("has a name that is not UTF-8", where=named.text, hint="rename it, or link to it")

    def _host(self, named: _Named) -> str:
        return named.address.label if named.address is not None else self.here

    def _new_round(self) -> SnapshotRound:
        return SnapshotRound(self._cut, [(peer.out, peer.fd) for peer, _ in self._peers])

    # -- taking

    def take(self, deadline: int, options: dict[str, Any] | None = None) -> Snapshot:
        """One atomic snapshot.  ``deadline``: ns within which all must freeze and thaw; longer in later tries."""
        attempt = 0
        while True:
            start = time.time_ns()
            answers, held = self._snap(min(deadline * GROWTH**attempt, MAX_DEADLINE))
            attempt += 1
            pairs = list(zip(self._peers, answers, strict=True))
            late = [peer for (peer, _), a in pairs if a.problem == "late"]
            taken = start + self._round.freeze_ns
            answers = self._drop_failed(answers, late if attempt == TRIES else [])
            if held and all(a.held for a in answers):
                return self._snapshot(taken, answers, attempt, options or {})
            if attempt == TRIES:
                if not late:
                    hint = "a longer --deadline helps on a busy machine or a slow network"
                    raise ConfluoError("a freeze ended before its thaw", hint=hint)
                attempt = 0  # the late ones were dropped; try again with the others

    def _snap(self, limit: int) -> tuple[list[HostReply], bool]:
        try:
            return self._round.snap(limit, max(limit, 5_000_000_000))
        except OverflowError as e:
            raise StoreError(str(e), where=self._local[0].path, hint="they end by themselves") from None

    def _too_late(self, peer: Connection) -> RemoteError:
        return RemoteError(
            "did not freeze and thaw in time", where=peer.name, hint="a longer --deadline helps with a slow network"
        )

    def _drop_failed(self, answers: list[HostReply], late: list[Connection]) -> list[HostReply]:
        """The answers of the remaining hosts; a failed host is an error, or missing."""
        kept, left, problems = [], [], []
        for (peer, group), answer in zip(self._peers, answers, strict=True):
            problem = self._problem(peer, group, answer, peer in late)
            if problem is None:
                kept.append((peer, group))
                left.append(answer)
            else:
                problems.append((peer, group, problem))
        for peer, group, problem in problems:
            self._lost(group, problem)
            peer.close()
        if problems:
            self._peers = kept
            freeze, total = self._round.freeze_ns, self._round.total_ns
            self._round = self._new_round()
            self._last = freeze, total
        else:
            self._last = self._round.freeze_ns, self._round.total_ns
        return left

    def _problem(self, peer: Connection, group: list[_Named], answer: HostReply, late: bool) -> RemoteError | None:
        if answer.problem in ("ended", "unsent"):
            return peer.lost()
        if answer.problem == "strange":
            if answer.frame is not None and answer.frame[0] == frame_codec.ERROR:
                reported = peer.reported(peer.message(answer.frame[1]))
                return reported if isinstance(reported, RemoteError) else peer.protocol_error(str(reported))
            return peer.protocol_error("unexpected answer to a freeze")
        if late:
            return self._too_late(peer)
        if answer.tails is not None and len(answer.tails) < len(group):
            return peer.protocol_error("tails of too few logs")
        return None

    def _snapshot(self, taken: int, answers: list[HostReply], tries: int, options: dict[str, Any]) -> Snapshot:
        found: dict[int, LogCut] = {}

        def put(named: _Named, tails: tuple[int, ...], firsts: tuple[int, ...], ns: int) -> None:
            host = named.address.host if named.address is not None else ""
            name = self._host(named)
            found[id(named)] = LogCut(name, host, named.path, named.uuid, named.kind, tails, firsts, ns)

        if self._cut is not None:
            for named, tails, firsts in zip(self._local, self._cut.tails(), self._cut.firsts(), strict=True):
                put(named, tails, firsts, self._cut.ns)
        for (_, group), answer in zip(self._peers, answers, strict=True):
            for named, tails, firsts in zip(group, answer.tails or [], answer.firsts or [], strict=False):
                put(named, tails, firsts, answer.ns)
        logs = [found[id(named)] for named in self._named]
        hosts = {peer.name: answer.ns for (peer, _), answer in zip(self._peers, answers, strict=True)}
        if self._cut is not None:
            hosts[self.here] = self._cut.ns
        self.timing = Timing(*self._last, hosts, tries)
        return Snapshot(logs, taken, missing=self.missing, options=options)

    def close(self) -> None:
        """Hang up."""
        close([peer for peer, _ in self._peers])
        for log in self._logs:
            log.close()

    def __enter__(self) -> SnapshotCoordinator:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()
