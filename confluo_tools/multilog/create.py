"""Create a MultiLog: the folder, its control page and multilog.yaml; append to the history in multilog.yaml."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import page
from confluo_tools.core.multilog.segment import SegmentShape
from confluo_tools.errors import StoreError
from confluo_tools.formats import arrow_meta
from confluo_tools.multilog.ownership import as_owner
from confluo_tools.multilog.yaml_line import yaml_flow
from confluo_tools.objects.address import refuse_url
from confluo_tools.schema import Schema

if TYPE_CHECKING:
    from pathlib import Path

FORMAT_VERSION = 1
LANES = 256
SEGMENT_BLOCKS = 16
SYNC = {"none": 0, "seal": 1, "batch": 2}
PAGE = 4096
CONTROL = "control"
ABOUT = "multilog.yaml"
_TEMPORARY = ".tmp"


def message_bytes(schema: Schema) -> int:
    """Size in bytes of the record batch message of a segment of ``schema``; it does not depend on the rows."""
    return -(-arrow_meta.batch_message_bytes(schema) // 64) * 64


def metadata(uuid: bytes) -> dict[str, str]:
    """Key-value metadata of the schema messages of a log, in addition to ``confluo:schema``."""
    return {"confluo:format": str(FORMAT_VERSION), "confluo:uuid": uuid.hex()}


def header(schema: Schema, uuid: bytes) -> bytes:
    """Header of every segment of a log: ``ARROW1`` and the schema message, padded to a multiple of 4 KiB."""
    message = arrow_meta.schema_message(schema, metadata(uuid))
    size = -(-(8 + len(message)) // PAGE) * PAGE - 8
    return arrow_meta.MAGIC + b"\0\0" + arrow_meta.schema_message(schema, metadata(uuid), size=size)


def shape(
    schema: Schema, head: bytes, uuid: bytes, segment_blocks: int, log_schema: Schema | None = None
) -> SegmentShape:
    """The compiled layout of segments with header ``head``, for readers that use ``log_schema``."""
    return SegmentShape(
        schema.layout, head, uuid, message_bytes(schema), segment_blocks, (log_schema or schema).layout, schema
    )


def is_free(path: str | os.PathLike[str]) -> bool:
    """Whether a log can be made here: nothing is there, or a folder with only files of a `create` that goes on."""
    if not os.path.lexists(path):
        return True
    return os.path.isdir(path) and all(name.endswith(_TEMPORARY) for name in os.listdir(path))


def create(
    path: str | os.PathLike[str],
    schema: Schema,
    *,
    sync: str = "none",
    lanes: int = LANES,
    segment_blocks: int = SEGMENT_BLOCKS,
    argv: Sequence[str] | None = None,
    uuid: bytes | None = None,
) -> None:
    """Create an empty MultiLog at ``path``, which must be a new or an empty folder.

    ``sync``: 'none', 'seal' or 'batch', see multilog(5).  ``lanes``: maximum number of concurrent writers.
    ``argv``: the command line, for the history.  ``uuid``: 16 bytes, random by default.  Raises StoreError;
    UsageError for a URL.
    """
    import secrets
    import time
    from pathlib import Path  # imported here because it is slow to load and readers do not need it

    refuse_url(os.fspath(path), "a MultiLog is a folder of this host; confluo-archive --to writes its rows to stores")
    if sync not in SYNC:
        raise StoreError(f"unknown sync mode '{sync}'", hint="use none, seal or batch")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_free(folder):
            raise _taken(folder)
        uuid = uuid or secrets.token_bytes(16)
        now = time.time_ns()
        try:
            control = page(
                uuid,
                segment_blocks=segment_blocks,
                lanes=lanes,
                sync=SYNC[sync],
                created=now,
                message_bytes=message_bytes(schema),
                schema=header(schema, uuid)[8:],
            )
        except ValueError as e:
            raise StoreError(str(e), where=path) from None
        options = {"sync": sync, "lanes": lanes, "block_rows": 65536, "segment_blocks": segment_blocks}
        # link(2) fails when the name exists, unlike rename(2): of concurrent creators exactly one succeeds.
        try:
            with as_owner(folder):
                _place(folder, CONTROL, control, _link, SYNC[sync] > 0)
        except FileExistsError:
            raise _taken(folder) from None
        about = _about(schema, uuid, now, options).encode()
        with as_owner(folder):
            _place(folder, ABOUT, about, os.rename, SYNC[sync] > 0)
        if argv is not None:
            remember(folder, argv)
        if SYNC[sync]:
            sync_folder(folder)
            sync_folder(folder.absolute().parent)
    except OSError as e:
        raise StoreError(f"cannot be created: {e.strerror}", where=e.filename or path) from None


def _taken(folder: Path) -> StoreError:
    there = "is a MultiLog already" if (folder / CONTROL).exists() else "is not empty"
    return StoreError(there, where=folder, hint="choose another name, or append to it")


def _link(temporary: Path, name: Path) -> None:
    try:
        os.link(temporary, name)
    except FileExistsError:
        raise
    except OSError:  # the file system does not support links
        if name.exists():
            raise
        os.rename(temporary, name)


def _place(folder: Path, name: str, data: bytes, put: Callable[[Path, Path], None], sync: bool) -> None:
    # Write a temporary file, then link or rename it to its final name.
    temporary = folder / f".{name}.{os.getpid()}{_TEMPORARY}"
    try:
        with open(temporary, "wb", opener=open_log_file) as f:
            f.write(data)
            f.flush()
            if sync:
                os.fsync(f.fileno())
        put(temporary, folder / name)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Sync the directory ``folder``, so that new and renamed entries survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remember(path: str | os.PathLike[str], argv: Sequence[str]) -> None:
    """Append one command line to the history in multilog.yaml, in one write."""
    import socket
    import time

    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = [os.fsencode(a).decode("utf-8", "backslashreplace") for a in argv]
    line = f"- {yaml_flow({'time': now, 'host': socket.gethostname(), 'argv': words})}\n"
    with as_owner(path):
        fd = open_log_file(os.path.join(path, ABOUT), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        if not os.fstat(fd).st_size:  # the file was removed
            line = f"history:\n{line}"
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of multilog.yaml: uuid, created, options, schema, history (a list of time, host, argv).

    Raises StoreError when it cannot be read.  The file is for people; no program depends on it.
    """
    from confluo_tools import guarded_yaml

    file = os.path.join(path, ABOUT)
    try:
        data = guarded_yaml.load(guarded_yaml.read(file, opener=open_log_file))
    except (OSError, guarded_yaml.YamlError) as e:
        raise StoreError(f"cannot be read: {e}", where=file) from None
    return data if isinstance(data, dict) else {}


def history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The command lines that made the log, oldest first: dicts with time, host, argv."""
    entries = about(path).get("history") or []
    return [e for e in entries if isinstance(e, dict)]


def _about(schema: Schema, uuid: bytes, now: int, options: dict[str, Any]) -> str:
    import time

    data = schema.as_dict()
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now // 1_000_000_000))
    lines = [
        "# A MultiLog of confluo-tools, for people: see multilog(5).  The programs read the file 'control'.",
        f"format: {FORMAT_VERSION}",
        f"uuid: {yaml_flow(uuid.hex())}",
        f"created: {yaml_flow(created)}",
        f"options: {yaml_flow(options)}",
        "schema:",
        f"  schema: {yaml_flow(data['schema'])}",
        f"  description: {yaml_flow(data['description'])}",
        "  fields:",
        *(f"  - {yaml_flow(f)}" for f in data["fields"]),
        "history:",
    ]
    return "\n".join(lines) + "\n"
