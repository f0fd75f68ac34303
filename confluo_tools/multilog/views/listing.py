"""Views as records of the schema ``view``, for the list of confluo-index."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from confluo_tools.schema import load

if TYPE_CHECKING:
    from confluo_tools.schema import Schema

LISTED = ("kind", "name", "bucket", "covered", "rows", "bytes", "definition")  # the fields of a view of one log


def view_schema() -> Schema:
    """The schema of a view: LISTED, after the ``log``."""
    return load(os.path.join(os.path.dirname(__file__), "listing.yaml"))
