"""confluo-config: the settings in force and where each comes from.  Manual: confluo-config(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli, config
from confluo_tools.cli.options import argument, option

app = cli.command_app(
    """
# all settings and their values
confluo-config

# and the file, variable or default of each
confluo-config --show-origin

# one value, for a script
confluo-config format
"""
)


@app.command()
def show(
    name: Annotated[str | None, argument("[NAME]", "Print only this setting.")] = None,
    show_origin: Annotated[bool, option("--show-origin", help="Print the origin of each setting, too.")] = False,
    file: cli.Config = None,
) -> int:
    """Print the settings in force and their values."""
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
