"""Logs as inputs, on this host and others: opened together and read as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.console import note, state, warn
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.inputs.topics import is_topic
from confluo_tools.objects.address import is_url

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.multilog.snapshot import LogCut, Snapshot
    from confluo_tools.remote.address import Address
    from confluo_tools.remote.connect import Connection, RemoteError, RemoteShell
    from confluo_tools.remote.reader import RemoteReader
    from confluo_tools.remote.request import QueryRequest
    from confluo_tools.schema import Schema


class LogPlace(NamedTuple):
    """A log to open: ``address`` or, when that is None, ``path``; ``at`` the version of a snapshot."""

    path: str
    address: Address | None = None
    at: LogCut | None = None
    host: str = ""  # value of the field `host`
    archive: bool = False  # not a log, but an archive (the part of it from ``host``)


def remote(name: str) -> Address | None:
    """HOST:PATH as an address; None for a path on this host."""
    if ":" not in name or is_topic(name) or is_url(name):  # most names, and no import
        return None
    from confluo_tools.remote import address

    return address.parse(name)


def shell() -> RemoteShell:
    """How other hosts are reached, from the settings."""
    from confluo_tools import config
    from confluo_tools.remote.connect import RemoteShell as Make

    return Make(config.text("rsh"), config.text("remote"))


def here() -> str:
    """The name of this host, for the field `host`."""
    import os

    return os.uname().nodename


def places(names: Sequence[str]) -> list[LogPlace]:
    """The places of inputs that are all logs or archives; an archive has one per host."""
    from confluo_tools.formats import detect

    out = []
    for name in names:
        address = remote(name)
        if address is None and detect.is_archive(name):
            from confluo_tools.multilog.archive.folders import hosts

            there = hosts(name)
            out += [LogPlace(name, None, None, host, True) for host in there]
            if not there and len(names) == 1:
                out.append(LogPlace(name, None, None, "", True))  # opening it reports the problem
            continue
        out.append(LogPlace(name, address, None, address.label if address is not None else here()))
    return out


def places_at(snapshot: Snapshot, where: str) -> list[LogPlace]:
    """The logs of a snapshot.  Missing logs are reported."""
    from confluo_tools.remote import address

    for gone in snapshot.missing:
        note(f"the snapshot is partial: {gone.where} is missing ({gone.reason})", where=where)
    out = []
    for cut in snapshot.logs:
        found = None
        if cut.host:
            found = address.parse(cut.where)
            if found is None or found.path != cut.path:
                raise ConfluoError(f"'{cut.where}' is not a log on another host", where=where)
        out.append(LogPlace(cut.path, found, cut, cut.name))
    return out


def open_logs(
    wanted: Sequence[LogPlace],
    request: QueryRequest | None = None,
    *,
    host: bool = False,
    partial: bool = False,
    path_fields: Sequence[str] = (),
) -> Reader:
    """Several logs as one Reader, by time, with the fields of all.

    ``request``: sent to the hosts, which return only its rows; an analysis or lists to unnest are sent only if there
    is one log: an analysis needs the rows of all logs by time.  ``host``: add a field `host`.
    ``partial``: go on without unreachable hosts, with a warning.  ``path_fields``: `host` or `date`, of archives.
    Of a log on another host that has an archive here, the archive gives the rows that the log has no more.
    """
    from confluo_tools.formats.merge import Merged, Shaped, united, with_host

    changed = request is not None and (request.analyze or request.unnest)
    if request is not None and changed and (len(wanted) > 1 or wanted[0].address is None):
        request = _unanalyzed(request)
    host = host or ("host" in path_fields and any(place.archive for place in wanted))
    if any(place.archive for place in wanted) and any(place.address is not None for place in wanted):
        request = _with_firsts(request)
    firsts: dict[str, Sequence[int]] = {}  # by uuid of a log elsewhere: what archives read up to
    found = _open(wanted, request, host, partial, path_fields, firsts)
    try:
        target = united([(reader.name, reader.schema) for _, reader in found])
        target = with_host(target) if host else target
        other = [i for i, (place, reader) in enumerate(found) if not _alike(reader.schema, target)]
        again = [i for i in other if found[i][0].address is not None]
        for i in again:
            found[i][1].close()
        for i, new in zip(again, _ask([found[i][0] for i in again], request, host, target), strict=True):
            if isinstance(new, ConfluoError):
                raise new
            found[i] = found[i][0], new
        if again and firsts:
            _archived_meanwhile(found, firsts)
        readers = [
            Shaped(reader, target, place.host if host else None) if i in other and i not in again else reader
            for i, (place, reader) in enumerate(found)
        ]
    except BaseException:
        for _, reader in found:
            reader.close()
        raise
    if len(readers) == 1:
        return readers[0]
    if all(place.address is None for place in wanted):
        return Merged(readers, target)
    from confluo_tools.remote.connect import HostLostError

    return Merged(readers, target, lost=HostLostError, warn=warn)


def ask_again(reader: RemoteReader, request: QueryRequest | None) -> RemoteReader:
    """A question to a log elsewhere through the connection of ``reader``, which has been read to its end.

    Raises RemoteError, also if the connection is lost.
    """
    from confluo_tools.remote.reader import RemoteReader as Make
    from confluo_tools.remote.request import QueryRequest as Ask

    chosen = request is not None and request.names is None
    request = (request or Ask()).replace(own=not state.archives)
    again = Make(reader.peer, request, chosen=chosen, warn=warn, note=note)
    again.ask()
    again.ready(shell().wait)
    return again


def _unanalyzed(request: QueryRequest) -> QueryRequest:
    # All rows are sent here and analysed here.
    from confluo_tools.remote.request import QueryRequest as Make

    return Make(names=request.expr)


def _with_firsts(request: QueryRequest | None) -> QueryRequest:
    from confluo_tools.remote.request import request_all

    return (request or request_all("")).replace(kept=True)  # without a request rows are selected here


def _firsts_of(readers: Iterable[Reader]) -> dict[str, Sequence[int]]:
    """By uuid of a log elsewhere, the first row of each lane in its answer."""
    from confluo_tools.remote.reader import RemoteReader

    logs = [reader for reader in readers if isinstance(reader, RemoteReader)]
    return {log.uuid: log.firsts for log in logs if log.firsts is not None}


def _archived_meanwhile(found: Sequence[tuple[LogPlace, Reader]], firsts: dict[str, Sequence[int]]) -> None:
    """Take the first rows of new answers: rows may have been archived since the first ones."""
    from confluo_tools.multilog.archive.reader import ArchiveReader
    from confluo_tools.remote.reader import RemoteReader

    firsts |= _firsts_of(reader for _, reader in found)
    for place, archive in found:
        if isinstance(archive, ArchiveReader):
            archive.list_again()
            for _, log in found:
                if isinstance(log, RemoteReader):
                    _check_twice(place, log)


def _check_twice(place: LogPlace, log: RemoteReader) -> None:
    """Raises UsageError if rows of a log elsewhere may also be in an archive that is an input."""
    from confluo_tools.multilog.archive.folders import has_rows_of

    if log.firsts is None and has_rows_of(place.path, log.uuid):
        what = f"has rows of {log.name}, which would come twice"
        raise UsageError(what, where=place.path, hint="query them one by one, or the log where its archive is")


def _alike(a: Schema, b: Schema) -> bool:
    """Whether blocks of one schema are valid for the other."""
    return [(c.name, c.code, c.size, c.count) for c in a.columns] == [
        (c.name, c.code, c.size, c.count) for c in b.columns
    ]


def _open(
    wanted: Sequence[LogPlace],
    request: QueryRequest | None,
    host: bool,
    partial: bool,
    path_fields: Sequence[str],
    firsts: dict[str, Sequence[int]],
) -> list[tuple[LogPlace, Reader]]:
    # ``firsts`` is filled for archives.
    from confluo_tools.multilog.open_log import open_log
    from confluo_tools.remote.reader import RemoteReader

    archives = list(dict.fromkeys(place.path for place in wanted if place.archive))
    known: list[str] = []  # logs that read their rows from the archives themselves
    elsewhere = [place for place in wanted if place.address is not None]
    asked = iter(_ask(elsewhere, request, host))
    out: list[tuple[LogPlace, Reader]] = []
    problems: list[ConfluoError] = []
    try:
        for place in wanted:
            if place.archive:
                continue
            if place.address is None:
                here = open_log(place.path, archives=state.archives, more=archives, warn=warn, note=note, at=place.at)
                out.append((place, here))
                known.append(here.log.uuid.hex())
                continue
            answer = next(asked)
            if isinstance(answer, ConfluoError):
                problems.append(answer)
            else:
                out.append((place, answer))
        firsts |= _firsts_of(reader for _, reader in out)
        older: list[tuple[LogPlace, Reader]] = []
        for place in wanted:
            if place.archive:
                from confluo_tools.multilog.archive.reader import ArchiveReader

                for _, given in out:
                    if isinstance(given, RemoteReader):
                        _check_twice(place, given)
                options = {"host": place.host or None, "without": known, "below": firsts, "path_fields": path_fields}
                older.append((place, ArchiveReader(place.path, warn=warn, note=note, **options)))  # type: ignore[arg-type]
        out = [*older, *out] if firsts else [*out, *older]  # of equal times, rows of archives are the older ones
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
    elsewhere: Sequence[LogPlace], request: QueryRequest | None, host: bool, schema: Schema | None = None
) -> list[RemoteReader | RemoteError]:
    """Connect to all hosts at once, with the query in the first packet; then wait for each."""
    if not elsewhere:
        return []
    from confluo_tools.remote.connect import Connection, RemoteError, begin, close
    from confluo_tools.remote.reader import RemoteReader
    from confluo_tools.remote.request import QueryRequest

    by = shell()
    chosen = request is not None and request.names is None
    request = (request or QueryRequest()).replace(own=not state.archives)
    peers = begin([place.address for place in elsewhere if place.address is not None], by)
    out: list[RemoteReader | RemoteError] = []
    try:
        for place, peer in zip(elsewhere, peers, strict=True):
            if isinstance(peer, RemoteError):
                out.append(peer)
                continue
            reader = RemoteReader(
                peer, request, chosen=chosen, at=place.at, host=place.host if host else None, warn=warn, note=note
            )
            out.append(_tried(peer, reader, lambda r: r.ask(schema)))
        for i, answer in enumerate(out):
            if not isinstance(answer, RemoteError):
                out[i] = _tried(answer.peer, answer, lambda r: r.ready(by.wait))
    except BaseException:
        close([peer for peer in peers if isinstance(peer, Connection)])
        raise
    return out


def _tried(
    peer: Connection, reader: RemoteReader, step: Callable[[RemoteReader], object]
) -> RemoteReader | RemoteError:
    from confluo_tools.remote.connect import RemoteError

    try:
        step(reader)
    except RemoteError as e:
        peer.close()
        return e
    return reader
