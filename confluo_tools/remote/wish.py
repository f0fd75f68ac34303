"""What a question wants of a log elsewhere, as text: the far side compiles it against its own schema."""

from __future__ import annotations

from typing import Any, NamedTuple

MAX_LIMIT = 1 << 62


class Wish(NamedTuple):
    """Rows for which ``expr`` holds, since <= time < until (ns), of the flows in ``sample``; then one of three:

    the ``fields`` of at most ``limit`` rows by time, their number (``counted``), or the partial state of ``agg`` and
    ``by``.  ``explain`` asks for the plan as well.  ``own``: only of what the log has itself.
    """

    expr: str = ""
    since: int | None = None
    until: int | None = None
    sample: str | None = None
    fields: str | None = None
    limit: int | None = None
    counted: bool = False
    agg: str | None = None
    by: str | None = None
    explain: bool = False
    own: bool = False

    def message(self) -> dict[str, Any]:
        return {k: v for k, v in self._asdict().items() if v not in (None, False, "")}

    @classmethod
    def of(cls, message: dict[str, Any]) -> Wish:
        """From a QUERY frame.  Raises ValueError."""
        from confluo_tools.remote import wire

        get = wire.get
        limit = get(message, "limit", int, None)
        if limit is not None and not 0 <= limit < MAX_LIMIT:
            raise ValueError("a message with a strange 'limit'")
        times = [get(message, key, int, None) for key in ("since", "until")]
        if any(t is not None and not -(1 << 63) <= t < 1 << 63 for t in times):
            raise ValueError("a message with a strange time")
        return cls(
            get(message, "expr", str, ""), times[0], times[1], get(message, "sample", str, None),
            get(message, "fields", str, None), limit, get(message, "counted", bool, False),
            get(message, "agg", str, None), get(message, "by", str, None), get(message, "explain", bool, False),
            get(message, "own", bool, False),
        )  # fmt: skip
