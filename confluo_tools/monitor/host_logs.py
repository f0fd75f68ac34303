"""The logs of one monitor, here and on other hosts: what is known of them before the first question."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.formats.merge import united, with_host
from confluo_tools.inputs.logs import here, remote, shell
from confluo_tools.monitor.log_partials import LocalPartials, LogPartials, RemotePartials

if TYPE_CHECKING:
    from confluo_tools.monitor.language import NamedAggregate
    from confluo_tools.schema import Schema

HOST = re.compile(r"\bhost\b")


class HostLogs:
    """The logs ``names``; with the interface of a `Log` as far as a monitor needs it.

    ``texts``: of the triggers: their filters are looked up, and a field `host` is added if they name it.
    ``live``: some of the hosts may be away now; ``unreached``: why, by name of the log.
    ``uuid``: follows from the names.  Raises ConfluoError.
    """

    def __init__(self, names: Sequence[str], texts: Sequence[str], tell: Callable[[str], None], *, live: bool) -> None:
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise UsageError("is given twice", where=twice)
        self.path = ", ".join(names)
        self.uuid = blake2b("\0".join(sorted(names)).encode("utf-8", "surrogateescape"), digest_size=16).digest()
        self.partials: list[LogPartials] = []
        for name in names:
            address = remote(name)
            if address is None:
                self.partials.append(LocalPartials(name, here(), tell))
            else:
                self.partials.append(RemotePartials(address, shell(), tell))
        self.unreached: dict[str, ConfluoError] = {}
        self.views: dict[str, NamedAggregate] = {}  # aggregates of views belong to one log
        self.filters: dict[str, str] = {}
        self._meaning: dict[str, str] = {}  # the log that has the filter
        try:
            self.schema = self._look("\n".join(texts), live)
        except BaseException:
            self.close()
            raise

    def _look(self, text: str, live: bool) -> Schema:
        found: list[tuple[str, Schema]] = []
        for each in self.partials:
            try:
                schema, filters = each.look(text)
            except ConfluoError as e:
                away = isinstance(each, RemotePartials) and not each.reached
                if not (live and away and len(self.partials) > 1):
                    raise
                self.unreached[each.name] = e
                continue
            found.append((each.name, schema))
            for name, meaning in filters.items():
                other = self._meaning.setdefault(name, each.name)
                if self.filters.setdefault(name, meaning) != meaning and re.search(rf"\b{re.escape(name)}\b", text):
                    raise UsageError(f"means something else by the filter '{name}' than {other}", where=each.name)
        if not found:
            raise next(iter(self.unreached.values()))
        schema = united(found)
        return with_host(schema) if HOST.search(text) else schema

    def version(self) -> None:
        """There is none: each answer is about the rows that its log has then."""

    def close(self) -> None:
        for each in self.partials:
            each.close()
