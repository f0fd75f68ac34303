"""Places outside as the ends of chains."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluo_tools.kafka.row_writer import PlaceWriter
    from confluo_tools.schema import Schema
    from confluo_tools.stream.flow_chain import OpenOutlet


def places(
    setting: Sequence[str] | None, codec: str, create: int, *, size: int | None, linger: int | None, wait: bool
) -> OpenOutlet:
    """What opens the places of chains.  ``setting``, ``codec``, ``create``: for topics; others take none of them."""
    from confluo_tools.kafka.address import SCHEME
    from confluo_tools.stream.destination import Destination

    def open_place(to: str, schema: Schema, pipeline: int) -> PlaceWriter:
        is_topic = to.startswith(SCHEME)
        place = Destination(to, setting, codec=codec, create=create) if is_topic else Destination(to)
        return place.open(schema, size=size, linger=linger, wait=wait, pipeline=pipeline)

    return open_place
