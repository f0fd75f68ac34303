"""The coordinator of snapshots: connections first, then one round trip to freeze and one to thaw.  Paper: Algorithm 1.

All logs, here and elsewhere, are frozen before the first is thawed; a cut of which any freeze had ended before its thaw
is thrown away and tried again with more time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluo_tools.core.freeze import MAX_LOGS, Cut
from confluo_tools.core.round import Answer, Round
from confluo_tools.errors import ConfluoError, StoreError, UsageError
from confluo_tools.remote import wire
from confluo_tools.remote.address import Address
from confluo_tools.remote.connect import Peer, RemoteError, Shell, begin, close
from confluo_tools.store import Log
from confluo_tools.store.snapshot import LogCut, Missing, Snapshot, check_name

MAX_DEADLINE = 60_000_000_000  # ns: the core breaks longer freezes
GROWTH = 4  # of the deadline, from one try to the next
TRIES = 5


class Timing(NamedTuple):
    """ns: until all had frozen, until all had thawed; freeze to thaw on each host; and how often it was tried."""

    freeze: int
    total: int
    hosts: dict[str, int]
    tries: int


class _Named:
    # A log as it was named, and what is known of it once it was opened.
    def __init__(self, text: str, address: Address | None) -> None:
        self.text, self.address = text, address
        self.path, self.uuid, self.kind = text, "", ""


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


class Cutter:
    """Takes snapshots of ``names`` (PATH or HOST:PATH); ``here`` is the name of this host.

    Making it connects to all hosts, at the same time; the connections stay open from one snapshot to the next.
    ``partial``: go on without hosts and logs that cannot be reached, as long as any is left: see ``missing``.
    Raises RemoteError, StoreError, UsageError.
    """

    def __init__(
        self, names: Sequence[tuple[str, Address | None]], shell: Shell, here: str = "", *, partial: bool = False
    ) -> None:
        self.partial, self.here, self.shell = partial, here, shell
        self.missing: list[Missing] = []
        self.timing = Timing(0, 0, {}, 0)
        self._named = [_Named(text, address) for text, address in names]
        self._peers: list[tuple[Peer, list[_Named]]] = []
        self._logs: list[Log] = []
        self._local: list[_Named] = []
        try:
            self._open_local()
            self._open_remote()
            self._check_names()
            self._cut = Cut([log.control for log in self._logs]) if self._logs else None
            self._round = self._new_round()
        except BaseException:
            self.close()
            raise

    # -- opening

    def _lost(self, named: Sequence[_Named], problem: ConfluoError) -> None:
        # These logs cannot be had: an error, unless a partial answer will do.
        if not self.partial or len(named) == len(self._named):
            raise problem
        for one in named:
            self.missing.append(Missing(one.text, problem.what if problem.where else str(problem)))
            self._named.remove(one)

    def _open_local(self) -> None:
        for named in [n for n in self._named if n.address is None]:
            try:
                log = Log(named.path)
                if not log.control.writable:
                    raise StoreError("cannot be frozen", where=named.path, hint="that needs permission to write to it")
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
                if isinstance(peer, Peer):
                    try:
                        paths = [n.address.path for n in group if n.address is not None]
                        peer.send(wire.frame(wire.OPEN, {"logs": paths}))
                    except RemoteError as e:
                        peers[i] = e
            for peer, group in zip(peers, groups, strict=True):
                try:
                    if isinstance(peer, RemoteError):
                        raise peer
                    peer.greet()
                    self._opened(peer, group)
                except RemoteError as e:
                    if isinstance(peer, Peer):
                        peer.close()
                    self._lost(group, e)
        except BaseException:
            close(peers)
            raise

    def _opened(self, peer: Peer, group: list[_Named]) -> None:
        _, message = peer.receive(wire.OPENED, wait=self.shell.wait)
        try:
            entries = wire.get(message, "logs", list)
            if len(entries) != len(group) or not all(isinstance(e, dict) for e in entries):
                raise ValueError("a message with a strange 'logs'")
            here = []
            for named, entry in zip(group, entries, strict=True):
                problem = wire.get(entry, "error", dict, None)
                if problem is not None:
                    self._lost([named], peer.told(problem))
                    here.append((named, False))
                    continue
                named.uuid, named.kind = (wire.get(entry, key, str)[:256] for key in ("uuid", "kind"))
                path = wire.get(entry, "path", str)
                assert named.address is not None
                named.path = named.address.path
                if not named.path.startswith("/") and 0 < len(path) <= 4096 and "\0" not in path:
                    named.path = path
                if len(named.uuid) != 32 or any(c not in "0123456789abcdef" for c in named.uuid):
                    raise ValueError("a message with a strange 'uuid'")
                here.append((named, True))
        except ValueError as e:
            raise peer.strange(str(e)) from None
        if peer.waiting:
            raise peer.strange("an answer before its question")
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
                raise UsageError("is the same log twice", where=f"{other.text}, {named.text}")
            check_name(self._host(named))
            if not _is_text(named.path):
                raise UsageError("has a name that is not UTF-8", where=named.text, hint="rename it, or link to it")

    def _host(self, named: _Named) -> str:
        return named.address.label if named.address is not None else self.here

    def _new_round(self) -> Round:
        return Round(self._cut, [(peer.out, peer.fd) for peer, _ in self._peers])

    # -- taking

    def take(self, deadline: int, options: dict[str, Any] | None = None) -> Snapshot:
        """One atomic cut.  ``deadline``: ns that all have to freeze and thaw in, more in later tries."""
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
                attempt = 0  # those that were late are gone; the others may make it

    def _snap(self, limit: int) -> tuple[list[Answer], bool]:
        try:
            return self._round.snap(limit, max(limit, 5_000_000_000))
        except OverflowError as e:
            raise StoreError(str(e), where=self._local[0].path, hint="they end by themselves") from None

    def _too_late(self, peer: Peer) -> RemoteError:
        return RemoteError(
            "does not freeze and thaw in time", where=peer.name, hint="a longer --deadline helps with a slow network"
        )

    def _drop_failed(self, answers: list[Answer], late: list[Peer]) -> list[Answer]:
        """The answers of those that still take part; the others are an error, or go missing."""
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

    def _problem(self, peer: Peer, group: list[_Named], answer: Answer, late: bool) -> RemoteError | None:
        if answer.problem in ("ended", "unsent"):
            return peer.lost()
        if answer.problem == "strange":
            if answer.frame is not None and answer.frame[0] == wire.ERROR:
                told = peer.told(peer.message(answer.frame[1]))
                return told if isinstance(told, RemoteError) else peer.strange(str(told))
            return peer.strange("what came is no answer to a freeze")
        if late:
            return self._too_late(peer)
        if answer.tails is not None and len(answer.tails) < len(group):
            return peer.strange("tails of too few logs")
        return None

    def _snapshot(self, taken: int, answers: list[Answer], tries: int, options: dict[str, Any]) -> Snapshot:
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

    def __enter__(self) -> Cutter:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()
