"""A topic to which two hosts publish, as an input of each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.errors import FormatError

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader


def split_by_host(topic: Reader, hosts: tuple[str, str]) -> list[Reader]:
    """The rows that each host sent, by time: through MultiLogs below $TMPDIR, which are removed.

    ``topic`` is read to its end; rows of other hosts are left out.  Raises FormatError for a host without rows.
    """
    from contextlib import ExitStack
    from tempfile import TemporaryDirectory

    from confluo_tools import multilog
    from confluo_tools.multilog.reader import LogReader

    found: dict[str, int] = {}
    with TemporaryDirectory(prefix="confluo-hosts-") as folder:
        paths = [f"{folder}/{number}.ml" for number in range(2)]
        with ExitStack() as stack:
            logs = [stack.enter_context(multilog.create(path, topic.schema, sync="none")) for path in paths]
            writers = [stack.enter_context(log.writer()) for log in logs]
            for block in topic:
                host: str = topic.host  # type: ignore[attr-defined]
                found[host] = found.get(host, 0) + block.rows
                if host in hosts:
                    writers[hosts.index(host)].append(block)
        for host in hosts:
            if host not in found:
                hint = f"there are {', '.join(sorted(found)[:10])}"
                raise FormatError(f"has no records of host '{host}'", where=topic.name, hint=hint)
        return [LogReader(path) for path in paths]  # their segments stay mapped
