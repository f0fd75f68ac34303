"""Logs as inputs, here and on other hosts, one or many: opened together, read as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.cli.state import note, state, warn
from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.remote.address import Address
    from confluo_tools.remote.connect import Peer, RemoteError, Shell
    from confluo_tools.remote.reader import RemoteReader
    from confluo_tools.remote.wish import Wish
    from confluo_tools.schema import Schema
    from confluo_tools.store.snapshot import LogCut, Snapshot


class Place(NamedTuple):
    """A log to open: ``address`` or, when that is None, ``path``; ``at`` the version of a snapshot."""

    path: str
    address: Address | None = None
    at: LogCut | None = None
    host: str = ""  # what the field `host` says
    archive: bool = False  # not a log, but an archive (the part of it from ``host``)


def remote(name: str) -> Address | None:
    """HOST:PATH as an address; None for what is here."""
    if ":" not in name:  # most names, and no import
        return None
    from confluo_tools.remote import address

    return address.parse(name)


def shell() -> Shell:
    """How other hosts are reached, as the settings say."""
    from confluo_tools import config
    from confluo_tools.remote.connect import Shell as Make

    return Make(config.text("rsh"), config.text("remote"))


def here() -> str:
    """The name of this host, for the field `host`."""
    import os

    return os.uname().nodename


def places(names: Sequence[str]) -> list[Place]:
    """Inputs that are all logs or archives, as places: of an archive, one for each host."""
    from confluo_tools.formats import detect

    out = []
    for name in names:
        address = remote(name)
        if address is None and detect.is_archive(name):
            from confluo_tools.store.archive_reader import hosts

            there = hosts(name)
            out += [Place(name, None, None, host, True) for host in there]
            if not there and len(names) == 1:
                out.append(Place(name, None, None, "", True))  # it says what is wrong
            continue
        out.append(Place(name, address, None, address.label if address is not None else here()))
    return out


def places_at(snapshot: Snapshot, where: str) -> list[Place]:
    """The logs of a snapshot.  Logs that it lacks are mentioned."""
    from confluo_tools.remote import address

    for gone in snapshot.missing:
        note(f"the snapshot is partial: {gone.where} is missing ({gone.reason})", where=where)
    out = []
    for cut in snapshot.logs:
        found = None
        if cut.host:
            found = address.parse(cut.where)
            if found is None or found.path != cut.path:
                raise ConfluoError(f"'{cut.where}' is no log on another host", where=where)
        out.append(Place(cut.path, found, cut, cut.name))
    return out


def open_logs(
    wanted: Sequence[Place], wish: Wish | None = None, *, host: bool = False, partial: bool = False
) -> Reader:
    """Several logs as one Reader, by time, with the fields of all.

    ``wish`` goes to the hosts, so that only what it asks for comes back; an analysis, when there is but one log, for it
    sees the rows of all by time.  ``host``: with a field `host`.
    ``partial``: go on without hosts that cannot be reached, and say so.
    """
    from confluo_tools.formats.merge import Merged, Shaped, united, with_host

    if wish is not None and wish.analyze and (len(wanted) > 1 or wanted[0].address is None):
        wish = _unanalyzed(wish)
    found = _open(wanted, wish, host, partial)
    try:
        target = united([(reader.name, reader.schema) for _, reader in found])
        target = with_host(target) if host else target
        other = [i for i, (place, reader) in enumerate(found) if not _alike(reader.schema, target)]
        again = [i for i in other if found[i][0].address is not None]
        for i in again:
            found[i][1].close()
        for i, new in zip(again, _ask([found[i][0] for i in again], wish, host, target), strict=True):
            if isinstance(new, ConfluoError):
                raise new
            found[i] = found[i][0], new
        readers = [
            Shaped(reader, target, place.host if host else None) if i in other and i not in again else reader
            for i, (place, reader) in enumerate(found)
        ]
    except BaseException:
        for _, reader in found:
            reader.close()
        raise
    return readers[0] if len(readers) == 1 else Merged(readers)


def _unanalyzed(wish: Wish) -> Wish:
    # All rows come here, where they are analysed.
    from confluo_tools.remote.wish import Wish as Make

    return Make(names=wish.expr)


def _check_twice(place: Place, log: RemoteReader) -> None:
    """Raises UsageError when rows of a log elsewhere are in an archive here that is an input, too."""
    from confluo_tools.store.archive_reader import knows

    if knows(place.path, log.uuid):
        what = f"has rows of {log.name}, which would come twice"
        raise UsageError(what, where=place.path, hint="ask them one by one, or the log where its archive is")


def _alike(a: Schema, b: Schema) -> bool:
    """Whether blocks of one are blocks of the other."""
    return [(c.name, c.code, c.size, c.count) for c in a.columns] == [
        (c.name, c.code, c.size, c.count) for c in b.columns
    ]


def _open(wanted: Sequence[Place], wish: Wish | None, host: bool, partial: bool) -> list[tuple[Place, Reader]]:
    from confluo_tools.remote.reader import RemoteReader
    from confluo_tools.store.opening import open_log

    archives = list(dict.fromkeys(place.path for place in wanted if place.archive))
    known: list[str] = []  # logs that bring their rows from the archives themselves
    elsewhere = [place for place in wanted if place.address is not None]
    asked = iter(_ask(elsewhere, wish, host))
    out: list[tuple[Place, Reader]] = []
    problems: list[ConfluoError] = []
    try:
        for place in wanted:
            if place.archive:
                continue
            if place.address is None:
                here = open_log(
                    place.path, archives=state.archives, more=archives, warn=warn, note=note, at=place.at
                )
                out.append((place, here))
                known.append(here.log.uuid.hex())
                continue
            answer = next(asked)
            if isinstance(answer, ConfluoError):
                problems.append(answer)
            else:
                out.append((place, answer))
        for place in wanted:
            if place.archive:
                from confluo_tools.store.archive_reader import ArchiveReader

                for _, given in out:
                    if isinstance(given, RemoteReader):
                        _check_twice(place, given)
                part = ArchiveReader(place.path, host=place.host or None, without=known, warn=warn, note=note)
                out.append((place, part))
        if problems and not (partial and out):
            raise problems[0]
    except BaseException:
        for reader in [reader for _, reader in out] + [a for a in asked if not isinstance(a, ConfluoError)]:
            reader.close()
        raise
    for problem in problems:
        note(f"{problem}; going on without it (--partial)")
    return out


def _ask(
    elsewhere: Sequence[Place], wish: Wish | None, host: bool, schema: Schema | None = None
) -> list[RemoteReader | RemoteError]:
    """Connect to all at once, with the question in the first packet; then wait for each."""
    if not elsewhere:
        return []
    from confluo_tools.remote.connect import Peer, RemoteError, begin, close
    from confluo_tools.remote.reader import RemoteReader
    from confluo_tools.remote.wish import Wish

    by = shell()
    chosen = wish is not None and wish.names is None
    wish = (wish or Wish()).but(own=not state.archives)
    peers = begin([place.address for place in elsewhere if place.address is not None], by)
    out: list[RemoteReader | RemoteError] = []
    try:
        for place, peer in zip(elsewhere, peers, strict=True):
            if isinstance(peer, RemoteError):
                out.append(peer)
                continue
            reader = RemoteReader(
                peer, wish, chosen=chosen, at=place.at, host=place.host if host else None, warn=warn, note=note
            )
            out.append(_tried(peer, reader, lambda r: r.ask(schema)))
        for i, answer in enumerate(out):
            if not isinstance(answer, RemoteError):
                out[i] = _tried(answer.peer, answer, lambda r: r.ready(by.wait))
    except BaseException:
        close([peer for peer in peers if isinstance(peer, Peer)])
        raise
    return out


def _tried(peer: Peer, reader: RemoteReader, step: Callable[[RemoteReader], object]) -> RemoteReader | RemoteError:
    from confluo_tools.remote.connect import RemoteError

    try:
        step(reader)
    except RemoteError as e:
        peer.close()
        return e
    return reader
