"""confluo-info: what is in a MultiLog, a stream or a capture, and whether it is whole.  Manual: confluo-info(1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.store.log import Log

app = cli.command_app(
    """
# what is in it: rows, time span, indexes, history, disk use
confluo-info trace.ml

# every field with its type, unit and meaning
confluo-info --fields trace.ml

# check every checksum; exit status 2 when anything is damaged
confluo-info --verify trace.ml

# for a program
confluo-info -J trace.ml
"""
)


@app.command()
def info(
    inputs: cli.Inputs = None,
    input_format: cli.InputFormat = None,
    fields: Annotated[bool, option("--fields", help="List the fields (of packets when there is no INPUT).")] = False,
    verify: Annotated[bool, option("--verify", help="Check every checksum and the structure of MultiLogs.")] = False,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
    local: cli.Local = False,
    *,
    common: cli.TalkOptions,
) -> int:
    """Tell what INPUT holds: schema, rows, time span, lanes, indexes, history, disk use."""
    names = inputs or []
    if fields and not names:
        return list_schema(None, tsv, ndjson)
    if cli.no_input(names):
        return cli.usage(app)
    status = cli.OK
    for i, name in enumerate(names or ["-"]):
        if verify:
            status = max(status, check(name, input_format))
            continue
        with cli.open_one(name, input_format) as reader:
            if fields:
                list_schema(reader, tsv, ndjson)
                continue
            facts = gather(reader, config.truth("local", local))
        if i and not (tsv or ndjson):
            print()
        show(facts, tsv, ndjson)
    return status


def list_schema(reader: Reader | None, tsv: bool, ndjson: bool) -> int:
    """The fields of an input, or of packets."""
    from confluo_tools.schema import builtin

    schema = builtin("packet") if reader is None else reader.schema
    if ndjson:
        import json

        for f in schema.fields:
            print(json.dumps(f.as_dict(), ensure_ascii=False))
    elif tsv:
        print("#fields\tfield\ttype\tunit\tdescription")
        for f in schema.fields:
            print("\t".join(x or "-" for x in (f.name, f.type.text, f.unit, f.description)))
    else:
        print(cli.list_fields(schema))
    return cli.OK


# -- what there is to tell -------------------------------------------------------------------------------------


def gather(reader: Reader, local: bool) -> dict[str, Any]:
    """Name -> value (text, number, or a list of such dicts), in the order they are shown."""
    from confluo_tools.units import format_duration, format_time

    schema = reader.schema
    facts: dict[str, Any] = {
        "input": reader.name,
        "format": reader.format,
        "schema": schema.kind,
        "fields": len(schema.fields),
        "row_bytes": schema.layout.row_bytes,
    }
    log = getattr(reader, "log", None)
    rows, first, last = span(reader, log)
    facts["rows"] = rows
    if first is not None and last is not None:
        facts["first"] = format_time(first, 9, local)
        facts["last"] = format_time(last, 9, local)
        facts["span"] = format_duration(last - first)
    if log is not None:
        facts |= of_log(log, reader.version)  # type: ignore[attr-defined]
    else:
        from confluo_tools.formats.arrow import history_of

        for key in ("host", "clock"):
            if f"confluo:{key}" in reader.metadata:
                facts[key] = reader.metadata[f"confluo:{key}"]
        facts["history"] = [{"command": line} for line in history_of(reader.metadata)]
    return facts


def span(reader: Reader, log: Log | None) -> tuple[int, int | None, int | None]:
    """(rows, first time, last time): from the zone maps of a MultiLog, else by reading."""
    schema = reader.schema
    column = schema.index(schema.time_field.name) if schema.time_field is not None else -1
    rows, first, last = 0, None, None
    blocks = log.blocks(reader.version) if log is not None else reader  # type: ignore[attr-defined]
    for block in blocks:
        rows += block.rows
        if column < 0 or not block.rows:
            continue
        zone = block.zones(column) if log is not None else None
        if zone is not None:
            lo, hi = zone[0] - (1 << 63), zone[1] - (1 << 63)
        else:
            times = memoryview(bytes(block.buffer(column))).cast("q")
            lo, hi = min(times), max(times)
        first = lo if first is None or lo < first else first
        last = hi if last is None or hi > last else last
    if log is not None:
        for path, number, reason in log.damage:
            cli.warn(reason if number is None else f"block {number}: {reason}", where=path)
    return rows, first, last


def of_log(log: Log, version: Any) -> dict[str, Any]:
    """What only a MultiLog has."""
    from confluo_tools.store import views
    from confluo_tools.store.create import about
    from confluo_tools.units import format_time

    control = log.control
    lanes = []
    segments: dict[int, int] = {}
    for part in log.segments(version):
        segments[part.lane] = segments.get(part.lane, 0) + 1
    for lane in range(len(version)):
        line = control.lane(lane)
        if version[lane] or line["pid"]:
            lanes.append({
                "lane": lane, "rows": version[lane], "removed": line["first"], "sealed": line["sealed"],
                "segments": segments.get(lane, 0), "writer": alive(log, lane, line["pid"]),
            })  # fmt: skip
    found, others = [], []
    for view in views.views(log, lambda path, what: cli.warn(what, where=path)):
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
        from confluo_tools.store.archive import noted

        for entry in noted(log):
            there = entry.path(log)
            moved.append({
                "archive": cli.printable(there or entry.absolute), "first": format_time(entry.oldest, 0),
                "last": format_time(entry.newest, 0), "there": "yes" if there else "no",
            })  # fmt: skip
    return {
        "uuid": log.uuid.hex(),
        "created": format_time(control.created, 0),
        "sync": log.sync,
        "disk_bytes": disk,
        "view_bytes": in_views,
        "lanes": lanes,
        "indexes": found,
        **({"views": others} if others else {}),
        **({"archives": moved} if moved else {}),
        **({"captures": live} if (live := captures_of(log.path)) else {}),
        "history": history,
    }


def captures_of(path: str) -> list[dict[str, Any]]:
    """What live captures into the log saw and could not take."""
    if not os.path.exists(os.path.join(path, "captures")):
        return []
    from confluo_tools.store.captures import captures

    return [{
        "begun": str(found.get("begun")), "until": str(found.get("until")),
        "interfaces": cli.printable(",".join(map(str, found.get("interfaces") or ["-"]))),
        "received": found.get("packets_received", 0), "kept": found.get("kept", 0),
        "dropped": found.get("dropped_by_the_kernel", 0), "missed": found.get("dropped_by_the_NIC", 0),
        "lost": found.get("not_stored", 0), "ended": str(found.get("ended") or "-"),
    } for found in captures(path)]  # fmt: skip


def alive(log: Log, lane: int, pid: int) -> int:
    """The pid of the lane's writer, 0 when there is none: the lock tells, in any pid namespace."""
    from confluo_tools.store import recover
    from confluo_tools.store.verify import _owned

    return pid if _owned(recover.lane_folder(log.path, lane)) else 0


def disk_use(path: str) -> tuple[int, int]:
    """(bytes on disk of the whole folder, of its views): blocks that exist, holes not counted."""
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


# -- how it is told --------------------------------------------------------------------------------------------

BYTES = {"disk_bytes": "disk", "view_bytes": "views", "row_bytes": "row"}


def show(facts: dict[str, Any], tsv: bool, ndjson: bool) -> None:
    """As text; as name<TAB>value lines; or as one JSON object."""
    if ndjson:
        import json

        text = json.dumps(facts, ensure_ascii=False)
        print(text.encode("utf-8", "backslashreplace").decode())
        return
    if tsv:
        for key, value in flat(facts):
            print(f"{key}\t{cli.printable(str(value))}")
        return
    for key, value in facts.items():
        if isinstance(value, list):
            table(key, value)
        elif key in BYTES:
            print(f"{BYTES[key]:<9}{size(value)}")
        else:
            shown = f"{value:,}" if isinstance(value, int) else cli.printable(str(value))
            print(f"{key:<9}{shown}")


def flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in facts.items():
        if isinstance(value, list):
            for i, item in enumerate(value):
                out += flat(item, f"{prefix}{key}.{i}.")
        else:
            out.append((prefix + key, value))
    return out


def table(title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        print(f"{title:<9}none" if title == "indexes" else f"{title:<9}-")
        return
    if title == "history":
        print(title)
        for row in rows:
            when = f"{row['time']}  " if "time" in row else ""
            print(f"  {when}{cli.printable(row['command'])}")
        return
    names = list(rows[0])
    cells = [[name.upper() for name in names]]
    for row in rows:
        cells.append([
            "-" if name == "writer" and not value else size(value) if name == "bytes" else
            f"{value:,}" if isinstance(value, int) and name not in ("writer",) else str(value)
            for name, value in row.items()
        ])  # fmt: skip
    print(title)
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    left = isinstance(rows[0][names[0]], str)
    for line in cells:
        first = line[0].ljust(widths[0]) if left else line[0].rjust(widths[0])
        print("  " + "  ".join([first, *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]))


def size(n: int) -> str:
    """Bytes for people: 1.9 MiB (2,035,712)."""
    for limit, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= limit:
            return f"{n / limit:.1f} {unit}"
    return f"{n} B"


# -- whether it is whole ---------------------------------------------------------------------------------------


def check(path: str, input_format: str | None) -> int:
    """Verify a MultiLog, or read another input to its end.  2 when anything is damaged."""
    from confluo_tools.formats.detect import is_archive, is_folder

    if is_archive(path) and input_format is None:
        return check_archive(path)
    if not is_folder(path):
        with cli.open_one(path, input_format) as reader:
            for _ in reader:
                pass
        if not cli.state.quiet and not cli.state.trouble:
            print(f"{cli.printable(reader.name)}: {reader.rows:,} rows, whole")
        return cli.OK
    from confluo_tools.store import open as open_log
    from confluo_tools.store.verify import verify

    if input_format not in (None, "multilog"):
        raise UsageError("is a folder", where=path, hint="only a MultiLog is one")
    damaged = 0
    with open_log(path, readonly=True) as log:
        rows = log.version().kept
        with cli.Progress("verifying", rows, "rows") as progress:
            for finding in verify(log, progress.update):
                if finding.damage:
                    damaged += 1
                    progress.erase()
                    print(cli.printable(str(finding)))
                elif cli.state.verbose:
                    cli.note(str(finding))
    if damaged:
        cli.note(f"{damaged} {'places are' if damaged > 1 else 'place is'} damaged", where=path)
        return cli.TROUBLE
    if not cli.state.quiet:
        print(f"{cli.printable(path)}: {rows:,} rows, whole")
    return cli.OK


def check_archive(path: str) -> int:
    """Compare every file of an archive with the checksum that was kept of it, and read all of its rows."""
    from confluo_tools.store.archive import check as check_files

    damaged = 0
    with cli.Progress("verifying", None, "bytes") as progress:
        for where, what in check_files(path, progress.update):
            damaged += 1
            progress.erase()
            print(cli.printable(f"{where}: {what}"))
    if damaged:
        cli.note(f"{damaged} {'files are' if damaged > 1 else 'file is'} damaged or missing", where=path)
        return cli.TROUBLE
    with cli.open_one(path) as reader:
        for _ in reader:
            pass
    if not cli.state.quiet and not cli.state.trouble:
        print(f"{cli.printable(path)}: {reader.rows:,} rows, whole")
    return cli.OK


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-info", argv)
