"""Speeds, delays and buffers as topology files write them.  Manual: confluo-topology(5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from confluo_tools import units
from confluo_tools.errors import FormatError, UsageError
from confluo_tools.network import strict_yaml
from confluo_tools.network.hardware import BUFFER, LINK, MAX_DELAY, MAX_SPEED, MIN_SPEED, LinkSpeed, SwitchBuffer
from confluo_tools.network.network_file import NetworkFile

MAX_BUFFER = 1 << 40
MAX_ALPHA = 1000
_BUFFER = "write buffer: {size: 2MB, alpha: 4}, or private: true for queues that share nothing"


def read_hardware(file: NetworkFile, tree: dict[str, Any]) -> None:
    """The keys ``link``, ``server_link`` and ``buffer`` of a file.  Raises FormatError."""
    file.link = read_link(file.path, "link", tree.get("link"), file.link)
    file.server_link = read_link(file.path, "server_link", tree.get("server_link"), file.link)
    file.buffer = _buffer(file.path, "buffer", tree.get("buffer"), file.buffer)


def read_link(path: str, what: str, data: Any, usual: LinkSpeed) -> LinkSpeed:
    """``{speed: 10Gbit, delay: 1us}``; what is not given is as ``usual``."""
    if data is None or data == "":
        return usual
    if not isinstance(data, dict) or not data.keys() <= {"speed", "delay"}:
        raise FormatError(f"{what} is invalid", where=path, hint="write {speed: 10Gbit, delay: 1us}")
    speed, delay = usual.speed, usual.delay
    if "speed" in data:
        speed = _value(path, f"speed of {what}", units.rate, data["speed"])
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise FormatError(f"speed of {what} is not from 10kbit to 8Tbit", where=path)
    if "delay" in data:
        delay = _value(path, f"delay of {what}", units.duration, data["delay"])
        if not 0 <= delay <= MAX_DELAY:
            raise FormatError(f"delay of {what} is not from 0 to 1000s", where=path)
    return LinkSpeed(speed, delay)


def read_buffer(path: str, what: str, about: dict[str, Any], usual: SwitchBuffer) -> SwitchBuffer | None:
    """``buffer`` of a switch, a mapping as at the top of the file; None if it is not given."""
    return _buffer(path, f"buffer of {what}", about["buffer"], usual) if "buffer" in about else None


def _buffer(path: str, what: str, data: Any, usual: SwitchBuffer) -> SwitchBuffer:
    if data is None or data == "":
        return usual
    if not isinstance(data, dict) or not data.keys() <= {"size", "alpha", "private"} or {"alpha", "private"} <= {*data}:
        raise FormatError(f"{what} is invalid", where=path, hint=_BUFFER)
    size, alpha = usual.size, usual.alpha
    if "size" in data:
        size = _value(path, f"size of {what}", units.size, data["size"])
        if size > MAX_BUFFER:
            raise FormatError(f"size of {what} is above 1 TiB", where=path)
    if "alpha" in data:
        given = units.try_number(strict_yaml.word(path, data["alpha"]))
        if given is None or not 0 < given <= MAX_ALPHA:
            raise FormatError(f"alpha of {what} is not a number above 0, at most {MAX_ALPHA}", where=path)
        alpha = max(1, round(given * 1024))
    if "private" in data:
        word = strict_yaml.word(path, data["private"])
        if word not in ("true", "false"):
            raise FormatError(f"private of {what} is neither true nor false", where=path)
        alpha = 0 if word == "true" else alpha
    return SwitchBuffer(size, alpha)


def _value(path: str, what: str, read: Any, data: Any) -> int:
    try:
        value: int = read(strict_yaml.word(path, data))
    except UsageError as e:
        raise FormatError(f"{what}: {e.what}", where=path, hint=e.hint) from None
    return value


def hardware_lines(file: NetworkFile) -> Iterator[str]:
    """The lines of a file for what is not as usual."""
    if file.link != LINK:
        yield f"link: {link_text(file.link)}"
    if file.server_link != file.link:
        yield f"server_link: {link_text(file.server_link)}"
    if file.buffer != BUFFER:
        yield f"buffer: {buffer_text(file.buffer)}"


def link_text(link: LinkSpeed) -> str:
    return f"{{speed: {units.format_rate(link.speed)}, delay: {units.format_duration(link.delay)}}}"


def buffer_text(buffer: SwitchBuffer) -> str:
    share = f"alpha: {units.format_number(buffer.alpha / 1024)}" if buffer.alpha else "private: true"
    return f"{{size: {buffer.size}, {share}}}"
