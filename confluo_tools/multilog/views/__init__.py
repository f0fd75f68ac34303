"""Views of a MultiLog: derived data in views/KIND-NAME that make queries faster and never change their results.

    views.add_index(log, "dst_port")                        writers may be active
    views.add_filter(log, "web", "dst_port in {80, 443}")
    views.add_aggregate(log, "web_bytes", "sum(len)", filter="web", by="dst_ip")
    views.Maintainer(log).step()                            update all views up to the newest full block

A view that is missing, damaged or of another log is not used: the query scans the rows instead.
One process at a time maintains a view (it holds views/KIND-NAME/lock); readers take no lock.

    registry                          the table of kinds: start here to add a kind of view
    base                              what all kinds have in common: folder, definition, lock, one file per segment
    index filter aggregate state      the kinds
    maintainer                        updates all views in one pass over each new block; check, coverage, rebuild
    view_reader, aggregate_lookup     how queries use indexes and filters, and aggregates
    view_request, view_work, listing  what confluo-index asks for, does and lists
"""

from __future__ import annotations

from confluo_tools.multilog.views.aggregate import AggregateView, add_aggregate, aggregates, find_aggregate
from confluo_tools.multilog.views.aggregate_lookup import AggregateLookup, find_lookup
from confluo_tools.multilog.views.base import FOLDER, StopEvent, View, complete_blocks, maintaining
from confluo_tools.multilog.views.filter import FilterNames, FilterView, add_filter, filters, find_filter, named_filters
from confluo_tools.multilog.views.index import IndexView, add_index, default_bucket, drop_index, find, indexes
from confluo_tools.multilog.views.maintainer import (
    Maintainer,
    bring_up_to_date,
    build,
    check,
    coverage,
    maintain,
    rebuild,
    update,
    update_all,
)
from confluo_tools.multilog.views.registry import KINDS, drop_view, views
from confluo_tools.multilog.views.state import StateView, add_state, find_state, states
from confluo_tools.multilog.views.view_reader import ViewReader

__all__ = [
    "FOLDER",
    "KINDS",
    "AggregateLookup",
    "AggregateView",
    "FilterNames",
    "FilterView",
    "IndexView",
    "Maintainer",
    "StateView",
    "StopEvent",
    "View",
    "ViewReader",
    "add_aggregate",
    "add_filter",
    "add_index",
    "add_state",
    "aggregates",
    "bring_up_to_date",
    "build",
    "check",
    "complete_blocks",
    "coverage",
    "default_bucket",
    "drop_index",
    "drop_view",
    "filters",
    "find",
    "find_aggregate",
    "find_filter",
    "find_lookup",
    "find_state",
    "indexes",
    "maintain",
    "maintaining",
    "named_filters",
    "rebuild",
    "states",
    "update",
    "update_all",
    "views",
]
