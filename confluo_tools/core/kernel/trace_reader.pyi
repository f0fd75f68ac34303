from typing import Any, final

@final
class TraceReader:
    read_events: int
    def __init__(
        self, traces: list[int], header: int, page: int, shapes: list[tuple[int, list[tuple[int, int, bool]]]]
    ) -> None: ...
    def read(self, most: int = 65536) -> list[tuple[Any, ...]]: ...
