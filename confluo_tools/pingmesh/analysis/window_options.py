"""Options that several verbs share: sla, verdict, blackholes, drops and heatmap."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

Where = Annotated[
    str, option("-e", "--expr", "--where", metavar="EXPR", help="Only probes for which EXPR holds: confluo-expr(7).")
]
Places = Annotated[
    str | None, option("--topology", metavar="FILE", help="Places of servers, for records that do not contain them.")
]
RuleTexts = Annotated[
    list[str] | None,
    option("--rule", metavar="RULE", help="Limit above which a group is bad (repeatable; 'drop > 1e-3', 'p99 > 5ms')."),
]
RetrySignature = Annotated[
    str | None, option("--signature", metavar="OS", help="Guess retries from times: linux, linux-classic or windows.")
]


def zoned(where: str, local: bool) -> str:
    """The expression ``where``, with local times written as moments if ``local`` or the setting says so."""
    from confluo_tools import config

    if not where.strip() or not config.truth("local", local):
        return where
    from confluo_tools.expr.local_times import without_local_times
    from confluo_tools.schema import builtin

    return without_local_times(where, builtin("probe"))


class WindowOptions(cli.OptionGroup):
    """Length of a window, and whether to follow the input."""

    window: Annotated[
        str | None, option("--window", metavar="TIME", help="Judge each TIME apart: 10m, 1h, 1d (all at once).")
    ] = None
    follow: Annotated[bool, option("--follow", help="Wait for new probes; judge each window when it is complete.")] = (
        False
    )
    lateness: Annotated[
        str | None, option("--lateness", metavar="TIME", help="--follow: wait for late records up to TIME (90s).")
    ] = None

    usual_lateness = "90s"  # not annotated: not an option itself

    def lengths(self) -> tuple[int, int]:
        """(length of a window, 0: a single one; lateness), both ns.  Raises UsageError."""
        late = cli.duration("--lateness", self.lateness or self.usual_lateness, 0)
        if self.lateness is not None and not self.follow:
            cli.tell("--lateness has no effect without --follow")
        if self.window is not None:
            return cli.duration("--window", self.window), late
        if self.follow:
            raise UsageError("needs --window TIME", where="--follow", hint="write e.g. 10m")
        return 0, late
