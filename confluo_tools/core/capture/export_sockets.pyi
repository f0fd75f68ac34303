from collections.abc import Sequence
from typing import final

from confluo_tools.core.capture.flow_exports import FlowExports

@final
class ExportSockets:
    def __init__(self, decoder: FlowExports, sockets: Sequence[tuple[int, bool]], wake: int) -> None: ...
    def receive(self, ms: int) -> bool: ...
