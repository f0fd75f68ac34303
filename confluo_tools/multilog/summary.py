"""Summary of a MultiLog for confluo-info: lanes, views, archives, captures, source files, history, disk use."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluo_tools.multilog.log import Log


def summary(log: Log, version: Any, warn: Callable[[str, str], None]) -> dict[str, Any]:
    """{name: value}, in the order of the report.  ``warn(path, what)``: called for each view that cannot be used."""
    from confluo_tools.multilog import views
    from confluo_tools.multilog.create import about
    from confluo_tools.multilog.retain import disk_bytes
    from confluo_tools.multilog.source_captures import MAX_FILES, source_captures
    from confluo_tools.units import format_time

    control = log.control
    lanes = []
    segments: dict[int, int] = {}
    packed: dict[str, dict[str, Any]] = {}
    for part in log.segments(version):
        segments[part.lane] = segments.get(part.lane, 0) + 1
        if codec := part.segment.codec:
            sizes = packed.setdefault(codec, {"codec": codec, "segments": 0, "rows": 0, "bytes": 0, "plain_bytes": 0})
            sizes["segments"] += 1
            sizes["rows"] += part.rows
            sizes["bytes"] += disk_bytes(part.path)
            sizes["plain_bytes"] += part.segment.plain_bytes
    for lane in range(len(version)):
        line = control.lane(lane)
        if version[lane] or line["pid"]:
            lanes.append(
                {
                    "lane": lane,
                    "rows": version[lane],
                    "removed": line["first"],
                    "sealed": line["sealed"],
                    "segments": segments.get(lane, 0),
                    "writer": live_writer(log, lane, line["pid"]),
                }
            )
    found, others = [], []
    for view in views.views(log, warn):
        covered, rows, size = views.coverage(log, view, version)
        reach = {"covered": covered, "rows": rows, "bytes": size}
        if isinstance(view, views.IndexView):
            found.append({"index": view.field, "bucket": view.bucket, **reach})
        else:
            text = " ".join(view.definition.split())
            others.append({"view": view.label, "kind": view.kind, **reach, "definition": text})
    data = about(log.path)
    history = []
    for entry in data.get("history") or []:
        if isinstance(entry, dict):
            from shlex import join

            words = [str(a) for a in entry.get("argv") or []]
            history.append({"time": str(entry.get("time")), "host": str(entry.get("host")), "command": join(words)})
    disk, in_views = disk_use(log.path)
    moved = []
    if os.path.exists(os.path.join(log.path, "archives")):
        from confluo_tools.multilog.archive.links import linked_archives

        for entry in linked_archives(log):
            there = entry.path(log)
            moved.append(
                {
                    "archive": there or entry.absolute,
                    "first": format_time(entry.oldest, 0),
                    "last": format_time(entry.newest, 0),
                    "there": "yes" if there else "no",
                }
            )
    return {
        "uuid": log.uuid.hex(),
        "created": format_time(control.created, 0),
        "sync": log.sync,
        "disk_bytes": disk,
        "view_bytes": in_views,
        "lanes": lanes,
        **({"compressed": list(packed.values())} if packed else {}),
        "indexes": found,
        **({"views": others} if others else {}),
        **({"archives": moved} if moved else {}),
        **({"captures": live} if (live := captures_of(log.path)) else {}),
        **({"files": files} if (files := list(islice(source_captures(log.path), MAX_FILES))) else {}),
        "history": history,
    }


def captures_of(path: str) -> list[dict[str, Any]]:
    """The counters of live captures into the log."""
    if not os.path.exists(os.path.join(path, "captures")):
        return []
    from confluo_tools.multilog.capture_statistics import captures

    return [
        {
            "begun": str(found.get("begun")),
            "until": str(found.get("until")),
            "interfaces": ",".join(map(str, found.get("interfaces") or ["-"])),
            "received": found.get("packets_received", found.get("records", 0)),
            "kept": found.get("kept", 0),
            "dropped": found.get("dropped_by_the_kernel", 0),
            "missed": found.get("dropped_by_the_NIC", 0),
            "lost": found.get("not_stored", 0),
            "ended": str(found.get("ended") or "-"),
        }
        for found in captures(path)
    ]


def live_writer(log: Log, lane: int, pid: int) -> int:
    """The pid of the lane's writer; 0 if it has none.  The lock decides: a pid may be of another namespace."""
    from confluo_tools.multilog import lane_claim
    from confluo_tools.multilog.verify import lane_is_owned

    return pid if lane_is_owned(lane_claim.lane_folder(log.path, lane)) else 0


def disk_use(path: str) -> tuple[int, int]:
    """(bytes on disk of the whole folder, of its views), without the holes of sparse files."""
    total = in_views = 0
    for folder, _, names in os.walk(path):
        inside = os.path.relpath(folder, path).split(os.sep)[0] == "views"
        for name in names:
            try:
                size = os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
            total += size
            in_views += size if inside else 0
    return total, in_views
