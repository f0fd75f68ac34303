from typing import final

from _typeshed import ReadableBuffer, WriteableBuffer

def aes(key: ReadableBuffer, data: ReadableBuffer, *, portable: bool = False) -> bytes: ...

@final
class Anonymizer:
    def __init__(
        self,
        key: ReadableBuffer,
        *,
        keep_mac: bool = False,
        keep_oui: bool = False,
        keep_payload: bool = False,
        ports: bool = False,
    ) -> None: ...
    def address(self, address: ReadableBuffer) -> bytes: ...
    def frame(self, data: ReadableBuffer, wire: int, link: int) -> bytes | None: ...
    def frames(
        self, raw: ReadableBuffer, width: int, captured: WriteableBuffer, wire: ReadableBuffer, link: ReadableBuffer
    ) -> bytes: ...
    def ipv4(self, words: WriteableBuffer) -> None: ...
    def ip(self, words: WriteableBuffer, wide: WriteableBuffer, version: ReadableBuffer | None = None) -> None: ...
    def macs(self, values: WriteableBuffer) -> None: ...
    def hide_ports(self, values: WriteableBuffer, proto: ReadableBuffer | None = None) -> None: ...

def flow_hashes(
    old: WriteableBuffer,
    source: ReadableBuffer,
    target: ReadableBuffer,
    sport: ReadableBuffer,
    dport: ReadableBuffer,
    proto: ReadableBuffer,
    version: ReadableBuffer | None = None,
    mac: ReadableBuffer | None = None,
    to_mac: ReadableBuffer | None = None,
    type: ReadableBuffer | None = None,
) -> None: ...
