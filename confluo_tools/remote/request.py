"""The request of a query for a log on another host, as text: the server compiles it against its own schema."""

from __future__ import annotations

TYPE_CHECKING = False  # a server answers sooner without typing, and without what makes classes of fields
if TYPE_CHECKING:
    from typing import Any

MAX_LIMIT = 1 << 62
MAX_LISTS = 250  # of one question
MAX_CHANGES = 10_000  # of the offset of a zone
MAX_OFFSET = 2 * 86400 * 10**9  # ns
MAX_FLOWS = 1 << 22  # that a server tracks for one client
ANALYSES = ("tcp",)  # that a server can make


class QueryRequest:
    """A request for the rows for which ``expr`` holds, with since <= time < until (ns), of the flows in ``sample``.

    The answer is one of three: the ``fields`` of at most ``limit`` rows by time, the row count (``counted``), or the
    partial state of ``agg`` and ``by``, with the aggregates that ``having`` and ``sort`` need.  ``explain``: also the
    query plan.  ``own``: only rows of the log itself, not of its archives.  ``analyze``: with the fields of these
    analyses, which track ``flows`` flows (None: the default).
    ``unnest``: one row for each element of these lists, after the analyses.
    ``local``: the steps of time of ``by`` are those of local time here; ``zone``: of a local time, see `TimeSteps`.
    ``names``: all rows are requested, and the client evaluates this expression; the server sends the definitions of
    the filters that it names.  ``last``: only the newest rows of this number.  ``kept``: also the numbers of the
    first rows of the log, because an archive here has earlier ones.
    """

    def __init__(
        self,
        expr: str = "",
        since: int | None = None,
        until: int | None = None,
        sample: str | None = None,
        fields: str | None = None,
        limit: int | None = None,
        counted: bool = False,
        agg: str | None = None,
        by: str | None = None,
        explain: bool = False,
        own: bool = False,
        analyze: tuple[str, ...] = (),
        flows: int | None = None,
        names: str | None = None,
        last: int | None = None,
        unnest: tuple[str, ...] = (),
        local: bool = False,
        zone: tuple[tuple[int, int], ...] = (),
        kept: bool = False,
        having: str | None = None,
        sort: str | None = None,
    ) -> None:
        self.expr, self.since, self.until, self.sample = expr, since, until, sample
        self.fields, self.limit, self.counted, self.agg, self.by = fields, limit, counted, agg, by
        self.explain, self.own, self.analyze, self.flows, self.names = explain, own, analyze, flows, names
        self.last = last
        self.unnest = unnest
        self.local, self.zone = local, zone
        self.kept = kept
        self.having, self.sort = having, sort

    def replace(self, **changes: Any) -> QueryRequest:
        """A copy with other values."""
        return QueryRequest(**{**vars(self), **changes})

    def message(self) -> dict[str, Any]:
        """The body of a QUERY frame: the values that differ from the defaults.

        Files of values are read here.  Raises UsageError if they are too long.
        """
        empty: tuple[Any, ...] = (None, False)
        values = vars(self)
        if "@" in self.expr:
            from confluo_tools.expr.list_file import inlined

            values = values | {"expr": inlined(self.expr)}
        if self.local:
            from confluo_tools.multilog.query.local_zone import offset_changes

            values = values | {"local": False, "zone": offset_changes()}
        return {k: v for k, v in values.items() if v not in ("", ()) and not any(v is e for e in empty)}

    @classmethod
    def of(cls, message: dict[str, Any]) -> QueryRequest:
        """The request in the body of a QUERY frame.  Raises ValueError."""
        from confluo_tools.remote import frame_codec

        get = frame_codec.get
        limit, flows, last = (get(message, key, int, None) for key in ("limit", "flows", "last"))
        for name, n in (("limit", limit), ("last", last)):
            if n is not None and not 0 <= n < MAX_LIMIT:
                raise ValueError(f"invalid '{name}' in message")
        if flows is not None and not 0 < flows <= MAX_FLOWS:
            raise ValueError("invalid 'flows' in message")
        times = [get(message, key, int, None) for key in ("since", "until")]
        if any(t is not None and not -(1 << 63) <= t < 1 << 63 for t in times):
            raise ValueError("invalid time in message")
        analyze = tuple(frame_codec.texts(message, "analyze", len(ANALYSES))) if "analyze" in message else ()
        if any(name not in ANALYSES for name in analyze) or len(set(analyze)) != len(analyze):
            raise ValueError("invalid 'analyze' in message")
        return cls(
            get(message, "expr", str, ""),
            times[0],
            times[1],
            get(message, "sample", str, None),
            get(message, "fields", str, None),
            limit,
            get(message, "counted", bool, False),
            get(message, "agg", str, None),
            get(message, "by", str, None),
            get(message, "explain", bool, False),
            get(message, "own", bool, False),
            analyze,
            flows,
            get(message, "names", str, None),
            last,
            tuple(frame_codec.texts(message, "unnest", MAX_LISTS)) if "unnest" in message else (),
            zone=_zone(get(message, "zone", list, [])),
            kept=get(message, "kept", bool, False),
            having=get(message, "having", str, None),
            sort=get(message, "sort", str, None),
        )


def _zone(pairs: list[Any]) -> tuple[tuple[int, int], ...]:
    if len(pairs) > MAX_CHANGES or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair) for pair in pairs
    ):
        raise ValueError("invalid 'zone' in message")
    zone = tuple([(time, offset) for time, offset in pairs])
    times = [time for time, _ in zone]
    if any(not -(1 << 63) <= time < 1 << 63 for time in times) or any(abs(offset) > MAX_OFFSET for _, offset in zone):
        raise ValueError("invalid 'zone' in message")
    if zone and (times[0] != -(1 << 63) or any(a >= times[i] for i, a in enumerate(times[:-1], 1))):
        raise ValueError("invalid 'zone' in message")
    return zone


def request_rows(
    expr: str,
    span: tuple[int | None, int | None],
    sample: str | None,
    fields: str | None,
    limit: int | None,
    counted: bool,
    agg: str | None,
    by: str | None,
    explain: bool,
    local: bool = False,
    *,
    having: str | None = None,
    sort: str | None = None,
) -> QueryRequest:
    """The request of a query; with ``agg``, ``fields`` and ``limit`` apply to the groups, on the client."""
    if agg is not None:
        local = local and bool(by)
        return QueryRequest(expr, *span, sample, agg=agg, by=by, explain=explain, local=local, having=having, sort=sort)
    if fields == "help":
        return QueryRequest(limit=0)
    return QueryRequest(expr, *span, sample, fields, limit, counted or explain, explain=explain)


def request_analysis(
    request: QueryRequest, analyze: tuple[str, ...], flows: int | None, state: str | None
) -> QueryRequest:
    """``request`` with analyses if a server can make them; otherwise one for all rows, which the client analyses."""
    if state is None and analyze == ANALYSES and (flows or 1) <= MAX_FLOWS:
        return request.replace(analyze=ANALYSES, flows=flows)
    return request_all(request.expr)


def request_all(expr: str) -> QueryRequest:
    """The request for all rows; the client evaluates ``expr``."""
    return QueryRequest(names=expr)
