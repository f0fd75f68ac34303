"""Views of a MultiLog: derived data in views/KIND-NAME, never needed for an answer, only for its speed.

    views.add_index(log, "dst_port")                        others may write meanwhile
    views.add_filter(log, "web", "dst_port in {80, 443}")
    views.add_aggregate(log, "web_bytes", "sum(len)", filter="web", by="dst_ip")
    views.Maintainer(log).step()                            all of them, over the past and up to the newest full block

A view that is lost, torn, damaged or of another log is not believed; what it would have told is scanned instead.
One process at a time maintains a view (it holds views/KIND-NAME/lock); readers take no lock.
`kinds` is the table of what there is; `base` says what all have in common.
"""

from __future__ import annotations

from confluo_tools.store.views.aggregate import AggregateView, add_aggregate, aggregates, find_aggregate
from confluo_tools.store.views.answer import Answering, answering
from confluo_tools.store.views.base import FOLDER, Stop, View, complete, maintaining
from confluo_tools.store.views.filter import FilterView, Names, add_filter, filters, find_filter
from confluo_tools.store.views.index import IndexView, add_index, default_bucket, drop_index, find, indexes
from confluo_tools.store.views.kinds import KINDS, drop_view, views
from confluo_tools.store.views.maintain import (
    Maintainer,
    bring,
    built,
    check,
    coverage,
    maintain,
    rebuild,
    update,
    update_all,
)
from confluo_tools.store.views.reader import Reader
from confluo_tools.store.views.state import StateView, add_state, find_state, states

__all__ = [
    "FOLDER",
    "KINDS",
    "AggregateView",
    "Answering",
    "FilterView",
    "IndexView",
    "Maintainer",
    "Names",
    "Reader",
    "StateView",
    "Stop",
    "View",
    "add_aggregate",
    "add_filter",
    "add_index",
    "add_state",
    "aggregates",
    "answering",
    "bring",
    "built",
    "check",
    "complete",
    "coverage",
    "default_bucket",
    "drop_index",
    "drop_view",
    "filters",
    "find",
    "find_aggregate",
    "find_filter",
    "find_state",
    "indexes",
    "maintain",
    "maintaining",
    "rebuild",
    "states",
    "update",
    "update_all",
    "views",
]  # fmt: skip
