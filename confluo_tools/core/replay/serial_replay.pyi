from collections.abc import Sequence
from typing import final

DONE: str
IP_OFFSET: int
KINDS: tuple[str, ...]
PACKET: str
STEP: str
WAITS: int
MERGED: int
YIELDS: int

@final
class FrameSender:
    def __init__(self, device: int) -> None: ...
    def send(self, head: bytes, length: int) -> int: ...

@final
class SerialReplay:
    @property
    def stuck(self) -> int: ...
    def __init__(
        self,
        devices: Sequence[int],
        socket: int,
        listener: int,
        address: bytes,
        steps: Sequence[bytes],
        patience: int = 300000000,
        feeds: Sequence[bytes] = ...,
    ) -> None: ...
    def run(self, start: int, linger: int = 2000000, relative: bool = False) -> None: ...
    def run_freely(self, start: int, delays: Sequence[int], drops: Sequence[bytes], until: int) -> None: ...
    def applied(self, e: int) -> bytes: ...
    def packets(self, e: int) -> bytes: ...
    def of_timers(self, e: int) -> bytes: ...
    def close(self) -> None: ...
