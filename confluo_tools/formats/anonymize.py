"""Anonymisation of records: addresses keep their prefixes (Crypto-PAn), what may hide an address is left out.

Fields of type ip, ipv4 and mac, and lists of them, get other addresses; so do numbers of nodes that are addresses.
`raw`, the first bytes of packets, is rewritten as a frame.  Flow hashes are computed again: from the old ones,
addresses could be found by trying.  Texts and other bytes may name a host, so they are not in the output.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.core.block.block import Block
from confluo_tools.core.packets.anonymizer import Anonymizer, flow_hashes
from confluo_tools.errors import UsageError
from confluo_tools.schema.types import ARRAY_CODES

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Picks
    from confluo_tools.schema import Field, Schema

KEY_BYTES = 32
KEEP = ("mac", "oui", "payload", "text")  # what --anonymize-keep accepts
# Fields of built-in schemas that have addresses, although their type does not say so.
NODES = {"path": {"path", "src_tor", "dst_tor", "link_a", "link_b"}, "vote": {"a", "b"}}
# Hashes from which addresses could be found: left out.
HASHES = {"alert": {"key_id"}, "recording": {"digest"}, "packet": {"packet_digest"}}
HARMLESS = {"conn": {"history"}, "score": {"model"}, "cause": {"size"}}  # texts that name no host
PORTS = ("src_port", "dst_port")
HASHED = ("src_ip", "dst_ip", "src_port", "dst_port", "proto")
NOT_IP = ("ip_version", "eth_src", "eth_dst", "eth_type")  # of flow hashes of packets that are not IP


class AnonymizeChoice(NamedTuple):
    """The key, what stays (words of `KEEP`), and whether ports become others."""

    key: bytes
    keep: frozenset[str]
    ports: bool

    def anonymizer(self) -> Anonymizer:
        return Anonymizer(
            self.key,
            keep_mac="mac" in self.keep,
            keep_oui="oui" in self.keep,
            keep_payload="payload" in self.keep,
            ports=self.ports,
        )


def read_key(path: str) -> bytes:
    """The 32 bytes of a key file, or their 64 hexadecimal digits.  Raises UsageError for other files."""
    hint = "make one: (umask 077; head -c 32 /dev/urandom > key.file)"
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(4096)
    except OSError as e:
        raise UsageError(e.strerror or str(e), where=path, hint=hint) from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise UsageError("other users may read this key", where=path, hint=f"chmod 600 {path}")
    if len(data) != KEY_BYTES:
        try:
            data = bytes.fromhex(data.decode("ascii").strip())
        except ValueError:
            data = b""
    if len(data) != KEY_BYTES:
        raise UsageError("is not a key of 32 bytes or 64 hexadecimal digits", where=path, hint=hint)
    return data


class AnonymousRecords:
    """Makes anonymous records of records with ``given``.

    ``schema``: of the result.  ``left_out``: names of the fields that are not in it.
    """

    def __init__(self, given: Schema, choice: AnonymizeChoice) -> None:
        self.given, self.choice = given, choice
        self._core = choice.anonymizer()
        kept = [field.name for field in given.fields if self._stays(field)]
        self.left_out = [field.name for field in given.fields if field.name not in kept]
        if not kept:
            hint = "--anonymize-keep text keeps them"
            raise UsageError("the records have only texts, which may name hosts", where="--anonymize", hint=hint)
        self.schema = given.project(kept)
        self._nodes = NODES.get(given.kind, set())
        self._index = {column.name: i for i, column in enumerate(self.schema.columns)}

    def _stays(self, field: Field) -> bool:
        given, kind = self.given, self.given.kind
        if field.name in HASHES.get(kind, ()):
            return False
        if field.name == "flow_hash":
            return all(name in given for name in (*HASHED, *(NOT_IP if kind == "packet" else ())))
        if not field.type.is_bytes:
            return True
        if _is_raw(field):
            return all(name in given for name in ("len", "cap_len", "link_type"))
        return "text" in self.choice.keep or field.name in HARMLESS.get(kind, ())

    def block(self, block: Block, picks: Picks | None = None) -> Block:
        """The rows ``picks`` of a block (all without it), made anonymous."""
        if picks is not None:
            block = block.take(picks)
        block = block.project(self.schema.layout)
        if not block.rows:
            return block
        data = [bytearray(block.buffer(i)) for i in range(len(self.schema.columns))]
        views = {name: self._view(data[i], i) for name, i in self._index.items()}
        for field in self.schema.fields:
            self._hide(field, views, data)
        if "flow_hash" in self.schema:
            ip = [views[name] for name in NOT_IP] if self.schema.kind == "packet" else []
            flow_hashes(views["flow_hash"], *(views[name] for name in HASHED), *ip)
        return Block.wrap(self.schema.layout, block.rows, data)

    def _view(self, data: bytearray, i: int) -> Any:
        code = self.schema.columns[i].code
        whole = memoryview(data)
        return whole.cast(ARRAY_CODES[code - 1]) if code <= len(ARRAY_CODES) else whole  # type: ignore[call-overload]

    def _hide(self, field: Field, views: dict[str, Any], data: list[bytearray]) -> None:
        name, core = field.name, self._core
        if field.type.kind == "ip":
            core.ip(views[name], views[name + "6"], views[field.version] if field.version else None)
        elif field.type.element == "ipv4" or (name in self._nodes and field.type.base == "u32"):
            core.ipv4(views[name])
        elif field.type.element == "mac":
            core.macs(views[name])
        elif name in PORTS and field.type.base == "u16":
            core.hide_ports(views[name], views.get("proto"))
        elif _is_raw(field):
            raw = core.frames(views[name], field.type.size, views["cap_len"], views["len"], views["link_type"])
            data[self._index[name]][:] = raw


def _is_raw(field: Field) -> bool:
    return field.name == "raw" and field.type.kind == "bytes"
