from typing import final

from confluo_tools.core.block.block import Layout, Staging

MIN_INTERVAL: int
MAX_PAYLOAD: int
MAX_RATE: int
MAX_TARGET_RATE: int
MAX_TIMEOUT: int
TIMEOUTS: dict[int, int]
KINDS: dict[str, int]
COUNTS: tuple[str, ...]

def labels_change() -> bool: ...

@final
class EchoProber:
    layout: Layout
    lab: bool
    list: int
    token: int
    slow: float
    def __init__(
        self,
        layout: Layout,
        *,
        seed: int = 0,
        src: str = "",
        pod: str = "",
        podset: str = "",
        dc: str = "",
        source: bytes | tuple[bytes, ...] | None = None,
        inflight: int = 4096,
        jitter: float = 0.03,
        stamps: bool = True,
        ports: int = 16,
        lab: bool = False,
    ) -> None: ...
    def move(self, *, pod: str = "", podset: str = "", dc: str = "") -> None: ...
    def add(
        self,
        address: bytes,
        port: int,
        kind: int,
        *,
        interval: int = 10_000_000_000,
        timeout: int = 0,
        payload: int = 0,
        dscp: int = 0,
        level: int = 5,
        count: int = 0,
        after: int = -1,
        name: str = "",
        pod: str = "",
        podset: str = "",
        dc: str = "",
        scope: int = 0,
    ) -> int: ...
    def clear(self) -> None: ...
    def run(self, block: Staging, until: int, min_rows: int = 0) -> int: ...
    def stop(self) -> None: ...
    @property
    def peers(self) -> int: ...
    @property
    def active(self) -> bool: ...
    @property
    def inflight(self) -> int: ...
    @property
    def rate(self) -> float: ...
    @property
    def counts(self) -> dict[str, int]: ...
