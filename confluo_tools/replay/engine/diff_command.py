"""confluo-replay diff: compare two recordings or replays.  Manual: confluo-replay-diff(1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import argument, option
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.replay.engine.recorded_diff import EndDiff
    from confluo_tools.replay.recording import ConnectionEnd

app = cli.command_app(
    """
# is the replay the recording, and how late was it?
confluo-replay diff c.ml again.ml

# one connection of two replays
confluo-replay diff a.ml b.ml --flow 10.0.0.1:4711-10.0.0.2:8080/tcp
"""
)

DIFFERENT = 3
First = Annotated[str, argument("A", "A recording or a replay: a MultiLog, a stream or a file of records.")]
Second = Annotated[str, argument("B", "The other one.")]
Flow = Annotated[str | None, option("--flow", metavar="FLOW", help="Compare only this connection.")]


@app.command(panels={"Options": "--flow"})
def diff(first: First, second: Second, flow: Flow = None, *, talk: cli.TalkOptions) -> int:
    """Compare what the ends of connections sent in two recordings or replays.

    Prints a line for each end.  The exit status is 0 when all are the same, and 3 when one differs.
    """
    from confluo_tools.replay.engine.recorded_diff import end_diff

    one, two = ends_of(first, flow), ends_of(second, flow)
    same = True
    for key, end in one.items():
        other = two.get(key)
        if other is None:
            cli.warn("is only in one of them", where=end.flow)
            continue
        found = end_diff(end, other)
        same = same and found.first < 0 and found.proof != ""
        print(f"{end.flow}: {line_of(found)}")
    for key in two.keys() - one.keys():
        cli.warn("is only in one of them", where=two[key].flow)
    return cli.TROUBLE if cli.state.trouble else cli.OK if same else DIFFERENT


def ends_of(path: str, flow: str | None) -> dict[tuple[object, int], ConnectionEnd]:
    """The ends of a recording by flow, and by their order if ports were used again.  Raises ConfluoError."""
    from confluo_tools.inputs.open import open_records
    from confluo_tools.replay.engine.flow import parse_flow
    from confluo_tools.replay.recording import read_ends

    wanted = parse_flow(flow) if flow is not None else None
    found: dict[tuple[object, int], ConnectionEnd] = {}
    for end in sorted(read_ends(open_records([path]), wanted), key=lambda end: end.began):
        number = sum(key[0] == end.flow for key in found)
        found[end.flow, number] = end
    if not found:
        raise ConfluoError("has no connection" if wanted is None else f"has no connection {wanted}", where=path)
    return found


def line_of(found: EndDiff) -> str:
    """The comparison of an end in words."""
    errors = found.errors
    times = ""
    if errors:
        p50, p99 = (errors[len(errors) * percent // 100] / 1000 for percent in (50, 99))
        times = f"; times differ by p50 {p50:.1f} us, p99 {p99:.1f} us"
    if not found.proof:
        return f"cannot be compared: no headers and no digests{times}"
    if found.first < 0:
        return f"same ({found.packets[0]} packets, by {found.proof}){times}"
    if found.proof == "digests":
        return f"differs: {found.expected}{times}"
    return f"differs at packet {found.first}: {found.expected} / {found.came}; similarity {found.similarity:.3f}{times}"


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-replay diff", argv)
