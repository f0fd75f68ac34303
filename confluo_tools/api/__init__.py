"""The Python API: open any input, ask it, and take the answer into pandas, Polars, DuckDB or pyarrow without a copy.

    import confluo_tools as ct

    log = ct.open("trace.ml")                                 # also a capture, an archive, host:/path, several of them
    table = log.query("tcp and port 443", fields=["ts", "len"]).to_arrow()
    log.aggregate("count, sum(len)", by="src_ip/24, 1m", where="udp", readable=True).to_pandas()

The guide with examples is docs/python.md.  These names are stable; other modules of the package may change.

    source      `open`: an input, and the questions to it
    answer      the answer: batches of rows, and how they go to other libraries
    follow      rows as they come
    writer      `Writer`: rows into a MultiLog
    arrow       rows as Arrow data
    messages    what a command would print on stderr, as Python warnings
"""

from __future__ import annotations

from confluo_tools.api.answer import Answer, Batch
from confluo_tools.api.follow import Follower
from confluo_tools.api.messages import ConfluoWarning
from confluo_tools.api.source import Source, open
from confluo_tools.api.writer import Writer
from confluo_tools.errors import ConfluoError
from confluo_tools.multilog.version import Version
from confluo_tools.schema import Field, Schema

__all__ = [
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
]
