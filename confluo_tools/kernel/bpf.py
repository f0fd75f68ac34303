"""Kernel packet filters: pcap-filter(7) expressions compiled by libpcap, which is loaded on first use.

A program is the bytes of its instructions (struct sock_filter: code, jt, jf, k).
"""

from __future__ import annotations

import ctypes
import re
import struct
from ctypes.util import find_library
from typing import Any

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.schema.link_types import ETHERNET, LINK_TYPES, RAW_IP

HATYPE = 0xFFFFF000 + 28  # SKF_AD_OFF + SKF_AD_HATYPE
SNAP = 262144
DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
MAX_INSTRUCTIONS = 4096  # of the kernel


def keep(snap: int) -> bytes:
    """The program that keeps the first ``snap`` bytes of every packet."""
    return struct.pack("HBBI", 0x06, 0, 0, snap)


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_uint), ("insns", ctypes.c_void_p))


def _library() -> Any:
    for name in ("libpcap.so.1", "libpcap.so.0.8", find_library("pcap")):
        if name is None:
            continue
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    hint = "install it (Debian: libpcap0.8, Fedora: libpcap), or give an EXPR"
    raise ConfluoError("libpcap is not installed", where="--bpf", hint=hint)


def compile(text: str, link: int | None, snap: int, device: str = "") -> bytes:
    """The program of the pcap-filter ``text`` for frames of ``link`` that keeps ``snap`` bytes.

    ``link`` None: for the device 'any': the frames of each interface begin with its own link header.
    ``device``: opened if the code depends on how the kernel handles VLAN tags.
    Raises UsageError: not a filter; ConfluoError: no libpcap.
    """
    if link is not None:
        return _compile(text, link, snap, device)
    ethernet = _compile(text, ETHERNET, snap, "lo")
    try:
        raw = _compile(text, RAW_IP, snap, "")
    except UsageError:
        raw = DROP  # it needs a field that only Ethernet has
    return _by_hardware([(LINK_TYPES[ETHERNET].hardware, ethernet), (LINK_TYPES[RAW_IP].hardware, raw)])


def _compile(text: str, link: int, snap: int, device: str) -> bytes:
    kind = LINK_TYPES.get(link)
    if kind is None or not kind.hardware:
        raise UsageError("this kind of interface has no kernel filter", where="--bpf", hint="give an EXPR instead")
    pcap = _library()
    pcap.pcap_open_dead.restype = pcap.pcap_create.restype = ctypes.c_void_p
    pcap.pcap_geterr.restype = ctypes.c_char_p
    handle = None
    if device and re.search(r"\bvlan\b", text):
        # The kernel stores VLAN tags outside the packet: only code for a live handle reads them.
        handle = _live(pcap, device)
    if handle is None:
        handle = ctypes.c_void_p(pcap.pcap_open_dead(kind.dlt if kind.dlt >= 0 else link, SNAP))
    program = _Program()
    try:
        if pcap.pcap_compile(handle, ctypes.byref(program), text.encode(), 1, ctypes.c_uint32(0xFFFFFFFF)):
            why = (pcap.pcap_geterr(handle) or b"").decode(errors="replace")
            raise UsageError(
                f"'{text}' is not a pcap-filter: {why}", where="--bpf", hint="pcap-filter(7) describes them"
            )
        code = ctypes.string_at(program.insns, program.len * 8)
        pcap.pcap_freecode(ctypes.byref(program))
    finally:
        pcap.pcap_close(handle)
    return _snapped(code, snap)


def _live(pcap: Any, device: str) -> ctypes.c_void_p | None:
    message = ctypes.create_string_buffer(256)
    handle = ctypes.c_void_p(pcap.pcap_create(device.encode(), message))
    if not handle:
        return None
    pcap.pcap_set_snaplen(handle, 64)
    pcap.pcap_set_buffer_size(handle, 1 << 16)
    if pcap.pcap_activate(handle) < 0:
        pcap.pcap_close(handle)
        return None
    return handle


def _snapped(code: bytes, snap: int) -> bytes:
    # A program returns the number of bytes to keep.
    out = []
    for op, yes, no, k in struct.iter_unpack("HBBI", code):
        out.append(struct.pack("HBBI", op, yes, no, snap if op == 0x06 and k else k))
    return b"".join(out)


def _by_hardware(programs: list[tuple[tuple[int, ...], bytes]]) -> bytes:
    """One program that branches on the hardware type of the interface and drops packets of other types."""
    size = 1 + sum(2 * len(types) for types, _ in programs)
    code = [struct.pack("HBBI", 0x20, 0, 0, HATYPE)]  # ld [hatype]
    at = size + 1  # offset of the first program
    for types, program in programs:
        for hatype in types:
            here = len(code)
            code.append(struct.pack("HBBI", 0x15, 0, 1, hatype))  # jeq hatype: next, else: over it
            code.append(struct.pack("HBBI", 0x05, 0, 0, at - here - 2))  # ja program
        at += len(program) // 8
    return b"".join([*code, DROP, *(program for _, program in programs)])


def attach(fd: int, program: bytes) -> None:
    """Attach ``program`` to a socket, replacing its filter.  Raises OSError, UsageError."""
    import socket

    if len(program) // 8 > MAX_INSTRUCTIONS:
        what = f"the filter has {len(program) // 8} instructions, the kernel takes {MAX_INSTRUCTIONS}"
        raise UsageError(what, where="--bpf", hint="simplify it, or give an EXPR instead")
    code = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    with socket.socket(fileno=fd) as s:
        try:
            s.setsockopt(socket.SOL_SOCKET, 26, fprog)  # SO_ATTACH_FILTER
        finally:
            s.detach()
