"""Functions of flows: what flows.yaml may do with the rows of a flow.  Each is a module: its word, its stage."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.stream.event_windows import WindowStage
    from confluo_tools.core.stream.stage import StreamStage
    from confluo_tools.schema import Schema
    from confluo_tools.stream.functions.words import Windows


class FlowFunction(Protocol):
    """One function of a chain.  Equal functions (==) may take over the state of each other."""

    @property
    def needs(self) -> frozenset[str]:
        """The fields that it reads."""

    @property
    def keeps(self) -> bool:
        """It gives rows as they came, perhaps fewer; otherwise it makes rows of its own from the fields it needs."""

    @property
    def whole(self) -> bool:
        """It needs all rows of the flow, in one place: what several workers make of their parts is another answer."""

    def after(self, schema: Schema) -> Schema:
        """The schema of the rows that it gives, when it takes rows of ``schema``."""

    def stage(self, schema: Schema) -> StreamStage:
        """A new stage that takes rows of ``schema``; it has all fields of ``needs``.  Each worker gets its own."""

    def remarks(self, stage: Any) -> list[str]:
        """What a user should know of a stage that its counters do not say."""


@runtime_checkable
class WindowFunction(FlowFunction, Protocol):
    """A function over windows.  Several workers may each fold a part of the rows: see `WindowClock`."""

    @property
    def windows(self) -> Windows:
        """Its windows."""

    @property
    def ordered(self) -> bool:
        """Its result depends on the order of rows, so that one worker must fold them all."""

    def part(self, schema: Schema) -> WindowStage:
        """As `stage`, for the part of one worker."""


# word of flows.yaml: module here.  Each has `read(value, schema, where, flow)`, which makes a FlowFunction from what is
# written after the word, for rows of `schema`; it raises UsageError with `where` ("flows.yaml: flow 'syn': filter").
# ``flow``: name of the flow, for records that name it.
FUNCTIONS = {"filter": "filter", "sample": "sample", "histogram": "histogram", "aggregate": "aggregate"}


def read(word: str, value: Any, schema: Schema, where: str, flow: str = "") -> FlowFunction:
    """The function ``word`` of a flow.  Raises UsageError."""
    if word not in FUNCTIONS:
        from difflib import get_close_matches

        near = get_close_matches(word, FUNCTIONS, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"write one of {', '.join(FUNCTIONS)}"
        raise UsageError(f"unknown function '{word}'", where=where, hint=hint)
    module = import_module(f"confluo_tools.stream.functions.{FUNCTIONS[word]}")
    made: FlowFunction = module.read(value, schema, f"{where}: {word}", flow)
    return made
