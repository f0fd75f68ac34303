from typing import Any, Protocol, final

from confluo_tools.core.replay.packet_store import PacketStore

class _End(Protocol):
    ended: int
    sent: Any
    received: Any
    events: Any
    headers_sent: Any
    headers_received: Any

@final
class RecordedPackets:
    derived: int
    def collect(
        self,
        store: PacketStore,
        flow: int,
        sender: _End,
        receiver: _End | None,
        *,
        mss: int,
        headers: int,
        timestamps: bool,
    ) -> bool: ...
