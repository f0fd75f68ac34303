"""confluo-tools: network records as a shared log, and Unix filters over it.

The Python API is in `confluo_tools.api`; its names are those of this package, loaded when they are used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself takes time to load
    from typing import Any

    from confluo_tools.api import Answer as Answer
    from confluo_tools.api import Batch as Batch
    from confluo_tools.api import ConfluoError as ConfluoError
    from confluo_tools.api import ConfluoWarning as ConfluoWarning
    from confluo_tools.api import Field as Field
    from confluo_tools.api import Follower as Follower
    from confluo_tools.api import Schema as Schema
    from confluo_tools.api import Source as Source
    from confluo_tools.api import Version as Version
    from confluo_tools.api import Writer as Writer
    from confluo_tools.api import open as open

__version__ = "0.1.0"
FORMAT_VERSION = 1  # of the MultiLog on disk; see docs/format.md

API = (  # `confluo_tools.api.__all__`: it is not loaded to look a name up
    "Answer",
    "Batch",
    "ConfluoError",
    "ConfluoWarning",
    "Field",
    "Follower",
    "Schema",
    "Source",
    "Version",
    "Writer",
    "open",
)


def __getattr__(name: str) -> Any:
    if name not in API:  # also each module of the package, before it is imported
        raise AttributeError(f"module 'confluo_tools' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module("confluo_tools.api"), name)
