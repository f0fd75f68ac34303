"""confluo-tools: network records as a shared log, and Unix filters over it.

The Python API is in `confluo_tools.api`; its names are those of this package, loaded when they are used.
"""

from typing import Any

__version__ = "0.1.0"
FORMAT_VERSION = 1  # of the MultiLog on disk; see docs/format.md


def __getattr__(name: str) -> Any:
    from importlib import import_module

    api = None if name.startswith("_") else import_module("confluo_tools.api")
    if api is not None and name in api.__all__:
        return getattr(api, name)
    raise AttributeError(f"module 'confluo_tools' has no attribute '{name}'")
