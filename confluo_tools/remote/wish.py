"""What a question wants of a log elsewhere, as text: the far side compiles it against its own schema."""

from __future__ import annotations

TYPE_CHECKING = False  # a server answers sooner without typing, and without what makes classes of fields
if TYPE_CHECKING:
    from typing import Any

MAX_LIMIT = 1 << 62
MAX_FLOWS = 1 << 22  # that a far side remembers for somebody else
ANALYSES = ("tcp",)  # that it knows by name


class Wish:
    """Rows for which ``expr`` holds, since <= time < until (ns), of the flows in ``sample``; then one of three:

    the ``fields`` of at most ``limit`` rows by time, their number (``counted``), or the partial state of ``agg`` and
    ``by``.  ``explain`` asks for the plan as well.  ``own``: only of what the log has itself.
    ``analyze``: with the fields of these analyses, which remember ``flows`` flows (None: as many as they do).
    ``names``, if it is not None: the expression that will be asked here, of all rows; what its names of filters mean is
    known there.
    """

    def __init__(
        self, expr: str = "", since: int | None = None, until: int | None = None, sample: str | None = None,
        fields: str | None = None, limit: int | None = None, counted: bool = False, agg: str | None = None,
        by: str | None = None, explain: bool = False, own: bool = False, analyze: tuple[str, ...] = (),
        flows: int | None = None, names: str | None = None,
    ) -> None:  # fmt: skip
        self.expr, self.since, self.until, self.sample = expr, since, until, sample
        self.fields, self.limit, self.counted, self.agg, self.by = fields, limit, counted, agg, by
        self.explain, self.own, self.analyze, self.flows, self.names = explain, own, analyze, flows, names

    def but(self, **changes: Any) -> Wish:
        """The same with other values."""
        return Wish(**{**vars(self), **changes})

    def message(self) -> dict[str, Any]:
        empty: tuple[Any, ...] = (None, False)
        return {k: v for k, v in vars(self).items() if v not in ("", ()) and not any(v is e for e in empty)}

    @classmethod
    def of(cls, message: dict[str, Any]) -> Wish:
        """From a QUERY frame.  Raises ValueError."""
        from confluo_tools.remote import wire

        get = wire.get
        limit, flows = (get(message, key, int, None) for key in ("limit", "flows"))
        if limit is not None and not 0 <= limit < MAX_LIMIT:
            raise ValueError("a message with a strange 'limit'")
        if flows is not None and not 0 < flows <= MAX_FLOWS:
            raise ValueError("a message with a strange 'flows'")
        times = [get(message, key, int, None) for key in ("since", "until")]
        if any(t is not None and not -(1 << 63) <= t < 1 << 63 for t in times):
            raise ValueError("a message with a strange time")
        analyze = tuple(wire.texts(message, "analyze", len(ANALYSES))) if "analyze" in message else ()
        if any(name not in ANALYSES for name in analyze) or len(set(analyze)) != len(analyze):
            raise ValueError("a message with a strange 'analyze'")
        return cls(
            get(message, "expr", str, ""), times[0], times[1], get(message, "sample", str, None),
            get(message, "fields", str, None), limit, get(message, "counted", bool, False),
            get(message, "agg", str, None), get(message, "by", str, None), get(message, "explain", bool, False),
            get(message, "own", bool, False), analyze, flows, get(message, "names", str, None),
        )  # fmt: skip
