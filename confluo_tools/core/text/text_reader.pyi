from collections.abc import Sequence
from typing import Any, final

from confluo_tools.core.block.block import Layout, Staging
from confluo_tools.core.text.text_writer import Item, TextPlan

PROBLEMS: dict[int, str]

@final
class Scanner(TextPlan):
    problem: int
    field: int
    all_keys: bool
    new_key: bytes | None
    def __init__(
        self, layout: Layout, plan: Sequence[Item], style: str, header: bytes = b"", delimiter: bytes = b","
    ) -> None: ...
    @property
    def bad(self) -> tuple[int, int]: ...
    def feed(self, data: Any, start: int, out: Staging, final: bool) -> int: ...
