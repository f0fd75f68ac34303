"""Open logs that grow, on this host and on others, as one input that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.console import tell, warn
from confluo_tools.errors import UsageError
from confluo_tools.inputs.logs import here, remote, shell

if TYPE_CHECKING:
    from confluo_tools.formats.growing import GrowingInput, GrowingReader, Place
    from confluo_tools.remote.growing import GrowingRemoteLog
    from confluo_tools.remote.request import QueryRequest


def are_logs(names: Sequence[str]) -> bool:
    """Whether the inputs are logs, here or elsewhere.  Raises UsageError for archives, and for others among logs."""
    from confluo_tools.formats import detect

    logs = [name for name in names if remote(name) is not None or detect.is_multilog(name)]
    for name in names:
        if name not in logs and detect.is_archive(name):
            what = "is an archive, which has the records that have left a log"
            raise UsageError(what, where=name, hint="follow the log, or leave --follow and --cursor out")
    if logs and len(logs) < len(names):
        other = next(name for name in names if name not in logs)
        raise UsageError("is not a MultiLog: only logs are followed together", where=other, hint="follow it alone")
    return bool(logs)


def open_growing(
    names: Sequence[str],
    request: QueryRequest | None = None,
    *,
    once: bool = False,
    until: int | None = None,
    last: int | None = None,
    places: Sequence[Place] | None = None,
) -> GrowingReader:
    """The logs ``names`` as one input that goes on, after ``places`` of an earlier one.

    ``request``: the question, for logs elsewhere.  ``last``: of what is there, at least the newest rows of this number
    are wanted.  The other arguments are those of `GrowingReader`.  Raises ConfluoError.
    """
    from confluo_tools.formats.growing import GrowingReader as Make
    from confluo_tools.formats.merge import united, with_host
    from confluo_tools.multilog.growing_log import GrowingLog

    inputs: list[GrowingInput] = []
    elsewhere: list[GrowingRemoteLog] = []  # those of other hosts: they shape their rows themselves
    host = any(remote(name) is not None for name in names) and len(names) > 1
    hosts: list[str | None] = []
    try:
        for i, name in enumerate(names):
            place = places[i] if places is not None else None
            known = {} if place is None else {"rows": place.position, "identity": place.identity}
            address = remote(name)
            if address is None:
                inputs.append(GrowingLog(name, warn=warn, **known))
                hosts.append(here() if host else None)
                continue
            from confluo_tools.remote.growing import GrowingRemoteLog as Remote

            label = address.label if host else None
            given = {"host": label, "last": last, "warn": warn, "tell": tell, **known}
            elsewhere.append(Remote(address, shell(), request, **given))
            inputs.append(elsewhere[-1])
            hosts.append(None)
        target = united([(each.name, each.schema) for each in inputs]) if len(inputs) > 1 else inputs[0].schema
        target = with_host(target) if host else target
        for far in elsewhere:
            if far.schema is not target:
                far.target = target
        return Make(inputs, target, hosts, once=once, until=until, warn=warn)
    except BaseException:
        for each in inputs:
            each.close()
        raise
