"""Snapshots: an atomic cut through several logs, as a small YAML file.

    snapshot = Snapshot.load("incident.yaml")
    for log in snapshot.logs: log.host, log.path, log.version

`Snapshot.text` writes the file; `Snapshot.parse` reads it strictly (no tags, no anchors, bounded sizes, every value
checked).  confluo-snapshot(1) describes its keys.  Paper: section 4, Algorithm 1.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any, NamedTuple

from confluo_tools.errors import FormatError, StoreError, UsageError
from confluo_tools.multilog.version import Version
from confluo_tools.multilog.yaml_line import yaml_string
from confluo_tools.objects.address import refuse_url

FORMAT = 1
MAX_BYTES = 16 << 20  # of a snapshot file
MAX_LOGS, MAX_LANES = 4096, 4096
HOST_BYTES = 64  # maximum length of a host name in UTF-8: the width of the field `host`
_UUID = re.compile(r"[0-9a-f]{32}")


class LogCut(NamedTuple):
    """One log of a snapshot.  ``host`` is '' for a local log; ``name`` is the host name that ``--by host`` prints."""

    name: str
    host: str  # [USER@]HOST, as ssh takes it
    path: str
    uuid: str
    kind: str
    tails: tuple[int, ...]
    firsts: tuple[int, ...] = ()  # the first kept row of each lane, () when none was removed: see multilog.retain
    frozen_ns: int = 0  # from freeze to thaw

    @property
    def version(self) -> Version:
        return Version(self.tails, map(min, self.firsts or [0] * len(self.tails), self.tails))

    @property
    def rows(self) -> int:
        """Rows of the log at that version, without those removed by retention."""
        return self.version.kept

    @property
    def where(self) -> str:
        """The log as a command line input: PATH or HOST:PATH."""
        if not self.host:
            return self.path
        user, at, name = self.host.rpartition("@")
        return f"{user}{at}[{name}]:{self.path}" if ":" in name else f"{self.host}:{self.path}"


class MissingLog(NamedTuple):
    """A log that a partial snapshot could not reach."""

    where: str
    reason: str


class Snapshot:
    """``logs`` at one instant; ``taken`` in ns since 1970 UTC; ``missing`` is empty unless the snapshot is partial."""

    def __init__(
        self,
        logs: list[LogCut],
        taken: int,
        *,
        missing: list[MissingLog] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.logs, self.taken = logs, taken
        self.missing, self.options = missing or [], options or {}

    @property
    def rows(self) -> int:
        return sum(log.rows for log in self.logs)

    def text(self) -> str:
        """The content of the file, as YAML."""
        from confluo_tools import units

        out = [
            "# An atomic cut through logs, made by confluo-snapshot; confluo-query --at THIS-FILE reads it.",
            f"confluo_snapshot: {FORMAT}",
            f"taken: {_quote(units.format_time(self.taken))}",
            f"partial: {'true' if self.missing else 'false'}",
        ]
        if self.options:
            inside = ", ".join(f"{k}: {_scalar(v)}" for k, v in self.options.items())
            out.append(f"options: {{{inside}}}")
        out.append("logs:" if self.logs else "logs: []")
        for log in self.logs:
            out += [
                f"- name: {_quote(log.name)}",
                f"  host: {_quote(log.host)}",
                f"  path: {_quote(log.path)}",
                f"  uuid: {_quote(log.uuid)}",
                f"  kind: {_quote(log.kind)}",
                f"  rows: {log.rows}",
                f"  frozen_ns: {log.frozen_ns}",
                f"  tails: [{', '.join(map(str, log.tails))}]",
            ]
            if any(log.firsts):
                out.append(f"  firsts: [{', '.join(map(str, log.firsts))}]")
        if self.missing:
            out.append("missing:")
            for gone in self.missing:
                out += [f"- log: {_quote(gone.where)}", f"  reason: {_quote(gone.reason)}"]
        return "\n".join(out) + "\n"

    @classmethod
    def load(cls, path: str) -> Snapshot:
        """Read a snapshot file; ``-`` is standard input.  Raises FormatError with the file and the problem."""
        where = "standard input" if path == "-" else path
        try:
            return cls.parse(_read(path))
        except OSError as e:
            raise FormatError(e.strerror or str(e), where=where) from None
        except ValueError as e:
            raise FormatError(f"is not a snapshot: {e}", where=where, hint="confluo-snapshot makes one") from None

    @classmethod
    def parse(cls, text: bytes) -> Snapshot:
        """Parse the content of a snapshot file.  Raises ValueError."""
        data = _plain(text) or _yaml(text)
        if not isinstance(data, dict) or "confluo_snapshot" not in data:
            raise ValueError("it has no line 'confluo_snapshot:'")
        version = data["confluo_snapshot"]
        if version != FORMAT or isinstance(version, bool):
            what = str(version)[:20] if isinstance(version, int | str) else "?"
            raise ValueError(f"it has format {what}; this program reads format {FORMAT}")
        known = {"confluo_snapshot", "taken", "partial", "options", "logs", "missing"}
        _known(data, known, "the file")
        logs = [_log(entry, i) for i, entry in enumerate(_list(data, "logs"), 1)]
        if not logs:
            raise ValueError("it has no logs")
        missing = []
        for entry in _list(data, "missing"):
            if not isinstance(entry, dict):
                raise ValueError("an entry of 'missing' is not a mapping")
            missing.append(MissingLog(_text(entry, "log", 4096), _text(entry, "reason", 4096)))
        if bool(missing) != (data.get("partial") is True):
            raise ValueError("'partial' contradicts 'missing'")
        options = data.get("options")
        return cls(
            logs, _time(data.get("taken")), missing=missing, options=options if isinstance(options, dict) else None
        )


def check_name(name: str) -> str:
    """Check a host name for `--by host`.  Raises UsageError when it is too long."""
    if len(name.encode("utf-8", "surrogateescape")) > HOST_BYTES:
        raise UsageError(f"host name is longer than {HOST_BYTES} bytes", where=name)
    return name


def check_log(cut: LogCut, uuid: bytes, tails: tuple[int, ...], where: str) -> Version:
    """The version of ``cut``, after comparing it with the uuid and tails of an open log.

    Raises StoreError when the log is not the one of the snapshot."""
    if uuid.hex() != cut.uuid:
        raise StoreError(
            "is not the log of the snapshot", where=where, hint=f"the log of the snapshot has uuid {cut.uuid}"
        )
    if not cut.version <= Version(tails):
        raise StoreError("has fewer rows than the snapshot", where=where, hint="was it restored from a copy?")
    return cut.version


def _quote(text: str) -> str:
    """A YAML string; bytes that are not UTF-8 as \\xNN."""
    return yaml_string(os.fsencode(text).decode("utf-8", "backslashreplace"))


def _scalar(value: Any) -> str:
    return _quote(value) if isinstance(value, str) else str(value)


def _read(path: str) -> bytes:
    refuse_url(path, "copy it here: a snapshot is a file of this host")
    fd = 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise ValueError("it is a folder")
        data = b""
        while len(data) <= MAX_BYTES and (piece := os.read(fd, 1 << 16)):
            data += piece
    finally:
        if fd:
            os.close(fd)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    return data


_ITEM = re.compile(r"(- |  |)([a-z_]+):(?: (?:(0|[1-9][0-9]{0,18})|(true|false)|\[([0-9, ]*)\]|(\".*)|\{(.*)\}))?")


def _plain(text: bytes) -> dict[str, Any] | None:
    """Parse the output of `Snapshot.text` without a YAML library, which loads slower than a remote host answers.

    Returns None for any other YAML.  The caller checks the values, as those of `_yaml`.
    """
    try:
        lines = text.decode().split("\n")
    except UnicodeDecodeError:
        return None
    out: dict[str, Any] = {}
    items: list[dict[str, Any]] | None = None
    if not lines[0].startswith("# ") or lines[-1] or not all(map(str.isprintable, lines)):
        return None
    for line in lines[1:-1]:
        match = _ITEM.fullmatch(line)
        if match is None:
            return None
        place, key = match[1], match[2]
        try:
            value = _value(match)
        except ValueError:
            return None
        if key in _WORDS:
            return None
        if key in (items[-1] if place == "  " and items else () if place else out):
            return None
        if not place:
            if items == []:
                return None
            items = None
            if value is None:
                items = value = []
            out[key] = value
            continue
        if items is None or value is None or (place == "  " and not items):
            return None
        if place == "- ":
            items.append({})
        items[-1][key] = value
    return None if items == [] else out


def _value(match: re.Match[str]) -> Any:
    # The value of a line.  Raises ValueError when `Snapshot.text` does not write it so; it may still be YAML.
    number, truth, numbers, quoted, mapping = match.groups()[2:]
    if number is not None:
        return int(number)
    if truth is not None:
        return truth == "true"
    if numbers is not None:
        words = numbers.split(", ") if numbers else []
        if not all(w.isdigit() and len(w) < 20 and (w == "0" or w[0] != "0") for w in words):
            raise ValueError(numbers)
        return [int(w) for w in words]
    if quoted is not None:
        value, end = _quoted(quoted, 0)
        if end != len(quoted):
            raise ValueError(quoted)
        return value
    if mapping is None:
        return None
    out: dict[str, str] = {}
    at = 0
    while True:
        colon = mapping.find(': "', at)
        key = mapping[at:colon]
        if colon < 0 or not key.isascii() or not key.isalpha() or key.lower() in _WORDS:
            raise ValueError(mapping)
        if key in out:
            raise ValueError(mapping)
        out[key], at = _quoted(mapping, colon + 2)
        if at == len(mapping):
            return out
        if mapping[at : at + 2] != ", ":
            raise ValueError(mapping)
        at += 2


_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # not strings in YAML 1.1


def _quoted(text: str, start: int) -> tuple[str, int]:
    """(string in double quotes at ``start``, its end).  The escapes are those of JSON, without surrogate pairs."""
    import json

    value, end = json.JSONDecoder().raw_decode(text, start)
    if not isinstance(value, str) or "\\/" in text or any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(text)
    if "\\ud" in text.lower():  # the decoder may have joined two surrogates
        raise ValueError(text)
    return value, end


def _yaml(text: bytes) -> Any:
    from confluo_tools import guarded_yaml

    return guarded_yaml.load(text, max_depth=8)


def _list(data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key, [])
    if not isinstance(value, list) or len(value) > MAX_LOGS:
        raise ValueError(f"'{key}' is not a list of at most {MAX_LOGS} entries")
    return value


def _known(data: dict[Any, Any], known: set[str], what: str) -> None:
    for key in data:
        if key not in known:
            raise ValueError(f"{what} has unknown key '{str(key)[:40]}'")


def _text(data: dict[str, Any], key: str, max_length: int) -> str:
    value = data.get(key)
    if not isinstance(value, str) or len(value) > max_length or "\0" in value:
        raise ValueError(f"'{key}' is not a string")
    return value


def _number(data: dict[str, Any], key: str) -> int:
    value = data.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"'{key}' is not a number")
    return value


def _rows(data: dict[str, Any], key: str) -> tuple[int, ...]:
    value = data.get(key)
    if not isinstance(value, list) or len(value) > MAX_LANES:
        raise ValueError(f"'{key}' is not a list of at most {MAX_LANES} numbers")
    if not all(isinstance(t, int) and not isinstance(t, bool) and 0 <= t < 1 << 48 for t in value):
        raise ValueError(f"'{key}' are not row counts")
    return tuple(value)


def _time(value: Any) -> int:
    from confluo_tools import units

    if not isinstance(value, str) or len(value) > 64:
        raise ValueError("'taken' is not a time")
    try:
        return units.time(value)
    except UsageError:
        raise ValueError("'taken' is not a time") from None


def _log(entry: Any, number: int) -> LogCut:
    if not isinstance(entry, dict):
        raise ValueError(f"log {number} is not a mapping")
    try:
        _known(entry, {"name", "host", "path", "uuid", "kind", "rows", "frozen_ns", "tails", "firsts"}, "it")
        name, host = _text(entry, "name", HOST_BYTES), _text(entry, "host", 255)
        path, uuid = _text(entry, "path", 4096), _text(entry, "uuid", 32)
        if not _UUID.fullmatch(uuid):
            raise ValueError("'uuid' is not 32 hexadecimal digits")
        if not path:
            raise ValueError("'path' is empty")
        tails, firsts = _rows(entry, "tails"), _rows(entry, "firsts") if "firsts" in entry else ()
        kind = _text(entry, "kind", 256)
        cut = LogCut(name, host, path, uuid, kind, tails, firsts, _number(entry, "frozen_ns"))
        if len(firsts) not in (0, len(tails)) or _number(entry, "rows") != cut.rows:
            raise ValueError("'rows', 'tails' and 'firsts' contradict each other")
        if len(name.encode()) > HOST_BYTES:
            raise ValueError(f"'name' is longer than {HOST_BYTES} bytes")
    except ValueError as e:
        raise ValueError(f"log {number}: {e}") from None
    return cut
