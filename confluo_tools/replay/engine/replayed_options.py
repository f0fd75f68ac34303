"""Socket options of a recording as a replay sets them."""

from __future__ import annotations

from confluo_tools.replay.recording import ConnectionEnd
from confluo_tools.replay.recording.socket_options import (
    NAMES,
    SO_RCVBUF,
    SO_SNDBUF,
    SOL_SOCKET,
    OptionValue,
    set_before,
)

# The size that the recording host granted is forced here: {option: (its forced form, setting with the host's limit)}.
_FORCED = {SO_SNDBUF: (32, "wmem_max"), SO_RCVBUF: (33, "rmem_max")}
MAX_BUFFER = 1 << 30  # bytes


def replayed_option(end: ConnectionEnd, option: OptionValue) -> OptionValue | None:
    """The option to set instead; none if it does not decide what TCP sends."""
    if (option.level, option.option) not in NAMES:
        return None
    if option.level != SOL_SOCKET or option.option not in _FORCED:
        return option
    name, limit = _FORCED[option.option]
    granted = min(option.value & 0xFFFFFFFF, end.setting(limit) or MAX_BUFFER, MAX_BUFFER)
    return OptionValue(option.level, name, granted)


def options_before(end: ConnectionEnd) -> tuple[tuple[int, int, int], ...]:
    """(level, option, value) of the socket before the connection."""
    found = [replayed_option(end, option) for option in set_before(end.settings)]
    return tuple([(o.level, o.option, o.value) for o in found if o is not None])
