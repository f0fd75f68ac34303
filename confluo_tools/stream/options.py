"""Options that verbs of confluo-stream share."""

from __future__ import annotations

from typing import Annotated

from confluo_tools.cli.options import option

Setting = Annotated[
    list[str] | None,
    option(
        "-X",
        metavar="NAME=VALUE",
        panel="Network",
        help="Setting of librdkafka (repeatable); VALUE may be @FILE or env:NAME, and secrets must be.",
    ),
]
RunName = Annotated[
    str | None,
    option("--name", metavar="NAME", panel="General", help="Name of the run, for status and set (that of its input)."),
]
