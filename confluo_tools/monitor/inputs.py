"""What a monitor reads: a log, a topic, or several logs of any hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.console import tell
from confluo_tools.errors import UsageError
from confluo_tools.inputs.logs import remote
from confluo_tools.inputs.topics import is_topic, spool_of

if TYPE_CHECKING:
    from confluo_tools.kafka.topic_spool import TopicSpool
    from confluo_tools.monitor.host_logs import HostLogs
    from confluo_tools.multilog.log import Log


class MonitorInput(NamedTuple):
    """One of three: the ``log``, with the ``spool`` if it is that of a topic, or ``hosts``."""

    log: Log | None = None
    spool: TopicSpool | None = None
    hosts: HostLogs | None = None

    @property
    def source(self) -> Log | HostLogs:
        found = self.hosts or self.log
        assert found is not None
        return found


@contextmanager
def opened(names: Sequence[str], texts: Sequence[str], files: Sequence[str], *, live: bool) -> Iterator[MonitorInput]:
    """The inputs ``names`` of triggers in ``texts`` and ``files``.  Raises ConfluoError."""
    topic = next((name for name in names if is_topic(name)), None)
    if topic is not None and len(names) > 1:
        raise UsageError("a topic is read alone", where=topic, hint="run a monitor for each topic")
    if topic is not None:
        with spool_of(topic, follow=live) as spool:
            yield MonitorInput(spool.log, spool)
    elif len(names) > 1 or remote(names[0]) is not None:
        from confluo_tools.monitor.host_logs import HostLogs
        from confluo_tools.monitor.trigger_files import read_trigger_file

        more = [entry.text for f in files for entry in read_trigger_file(f).entries]
        hosts = HostLogs(names, [*texts, *more], tell, live=live)
        try:
            yield MonitorInput(hosts=hosts)
        finally:
            hosts.close()
    else:
        from confluo_tools import multilog

        with multilog.open(names[0], readonly=True) as log:
            yield MonitorInput(log)


def default_alerts(names: Sequence[str]) -> str:
    """Where alerts are kept: next to a log of this host, else in the current folder."""
    import os

    if len(names) > 1:
        return os.path.abspath("monitor.alerts.ml")
    address = None if is_topic(names[0]) else remote(names[0])
    path = names[0] if address is None else os.path.basename(address.path.rstrip("/"))
    if is_topic(path):
        path = path.partition("?")[0].rpartition("/")[2]
    return f"{os.path.abspath(path).removesuffix('.ml')}.alerts.ml"
