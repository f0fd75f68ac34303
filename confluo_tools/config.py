"""Settings: flag > CONFLUO_* > $XDG_CONFIG_HOME/confluo/config.yaml > /etc/xdg > default.

Nothing is read from the current directory: another user may be able to write there, and the setting `rsh` is a command.
A setting is looked up with `text` or `truth`; YAML is imported only if one of the files exists.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, NoReturn

from confluo_tools.errors import UsageError
from confluo_tools.formats.registry import OUTPUTS


class Key(NamedTuple):
    default: str
    what: str
    choices: tuple[str, ...] = ()


BOOLEAN = ("true", "false")

# All settings.  The environment variable of each is CONFLUO_ and its name in capitals.
KEYS: dict[str, Key] = {
    "format": Key("", "output format when -o is not given", ("", *OUTPUTS)),
    "color": Key("auto", "colour and progress", ("auto", "always", "never")),
    "clobber": Key("false", "overwrite output files without --force", BOOLEAN),
    "local": Key("false", "times in options and tables are local, not UTC", BOOLEAN),
    "line_buffered": Key("false", "write each record at once", BOOLEAN),
    "sync": Key("seal", "when rows reach the disk: none, seal (segment full) or batch", ("none", "seal", "batch")),
    "rsh": Key("ssh", "program that connects to other hosts"),
    "remote": Key("confluo serve --stdio", "command that it runs there"),
}


class Setting(NamedTuple):
    value: str
    origin: str  # 'default', a variable, or a file


_only: str | None = None
_files: dict[str, Setting] | None = None


def use_file(path: str | None) -> None:
    """Read settings from this file instead of the usual ones (--config)."""
    global _only, _files
    _only, _files = path, None


def setting(name: str) -> Setting:
    """Value and origin of one setting, without flags.  Raises UsageError for an invalid value."""
    key = KEYS[name]
    variable = "CONFLUO_" + name.upper()
    value = os.environ.get(variable)
    if value is not None and (value or "" in key.choices):
        return _checked(name, value, variable)
    return _from_files().get(name) or Setting(key.default, "default")


def text(name: str, flag: str | None = None) -> str:
    """The flag if it was given, else the setting."""
    return flag if flag is not None else setting(name).value


def truth(name: str, flag: bool | None = None) -> bool:
    """A yes-or-no setting; a flag of True wins, False and None mean not given."""
    return bool(flag) or setting(name).value == "true"


def paths() -> list[str]:
    """The files that are read; earlier ones take precedence."""
    if _only is not None:
        return [_only]
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    system = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    # A relative path would be in the current directory.
    return [os.path.join(d, "confluo", "config.yaml") for d in [home, *system] if os.path.isabs(d)]


def _from_files() -> dict[str, Setting]:
    global _files
    if _files is None:
        found: dict[str, Setting] = {}
        for path in paths():
            if path == _only or os.path.exists(path):
                for name, one in _load(path).items():
                    found.setdefault(name, one)
        _files = found
    return _files


def _load(path: str) -> dict[str, Setting]:
    from confluo_tools import guarded_yaml

    try:
        data: Any = guarded_yaml.load(guarded_yaml.read(path))
    except OSError as e:
        raise UsageError(e.strerror or str(e), where=path or "--config ''") from None
    except guarded_yaml.YamlError as e:
        raise UsageError(f"is not YAML: {e}", where=path) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError("is not a list of settings", where=path, hint="write e.g. 'format: tsv'")
    out = {}
    for name, value in data.items():
        if name not in KEYS:
            unknown(str(name), path)
        if isinstance(value, dict | list):
            hint = f"write e.g. '{name}: {KEYS[name].default or 'tsv'}'"
            raise UsageError(f"the value of {name} is not a text", where=path, hint=hint)
        word = {True: "true", False: "false", None: ""}.get(value) if isinstance(value, bool | None) else str(value)
        out[name] = _checked(name, word or "", path)
    return out


def _checked(name: str, value: str, origin: str) -> Setting:
    choices = KEYS[name].choices
    if choices == BOOLEAN:
        value = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}.get(
            value.lower(), value.lower()
        )
    if choices and value not in choices:
        possible = ", ".join(c for c in choices if c)
        raise UsageError(f"'{value}' is not possible for {name}", where=origin, hint=f"use {possible}")
    return Setting(value, origin)


def unknown(name: str, where: str = "") -> NoReturn:
    """Raise UsageError for an unknown setting."""
    from difflib import get_close_matches

    near = get_close_matches(name, KEYS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else "confluo config lists them"
    raise UsageError(f"unknown setting '{name}'", where=where, hint=hint)
