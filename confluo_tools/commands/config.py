"""confluo-config: the settings in force and where each comes from.  Manual: confluo-config(1)."""

from __future__ import annotations

from typing import Annotated

import typer

from confluo_tools import cli, config

app = cli.command_app(
    """
# every setting and its value
confluo-config

# and which file, variable or default it comes from
confluo-config --show-origin

# one value, for a script
confluo-config format
"""
)


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this setting.", show_default=False)] = None,
    show_origin: Annotated[bool, typer.Option("--show-origin", help="Also print where each comes from.")] = False,
    file: cli.Config = None,
) -> int:
    """Print the settings that commands would use here."""
    if file is not None:
        config.use_file(file)
    if name is not None:
        name = name.replace("-", "_")
        if name not in config.KEYS:
            config.unknown(name)
    for key in config.KEYS if name is None else [name]:
        one = config.setting(key)
        line = one.value if name is not None else f"{key}={one.value}"
        print(f"{one.origin}\t{line}" if show_origin else line)
    return cli.OK


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-config", argv)
