"""Options of the verbs that judge probes window by window: sla, blackholes and drops."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

Where = Annotated[str, option("-e", "--expr", "--where", metavar="EXPR", help="Only such probes: confluo-expr(7).")]


class WindowOptions(cli.Group):
    """How long a stretch of time is judged as one, and whether to go on as probes come."""

    window: Annotated[
        str | None, option("--window", metavar="TIME", help="A judgement for each TIME: 10m, 1h, 1d (one for all).")
    ] = None
    follow: Annotated[
        bool, option("--follow", help="Go on as probes come; judge each window when it is over.")
    ] = False
    lateness: Annotated[
        str, option("--lateness", metavar="TIME", help="--follow: how late records may be (90s).")
    ] = "90s"

    def lengths(self) -> tuple[int, int]:
        """(length of a window, 0: one of all; how late records may be), ns.  Raises UsageError."""
        late = cli.duration("--lateness", self.lateness, 0)
        if self.window is not None:
            return cli.duration("--window", self.window), late
        if self.follow:
            raise UsageError("needs --window TIME", where="--follow", hint="write e.g. 10m")
        return 0, late
