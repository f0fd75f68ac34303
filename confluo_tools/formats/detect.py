"""What an input is, told by its first bytes, also on a pipe."""

from __future__ import annotations

import os
import stat

# 'arrow' is the Arrow file format, 'stream' the Arrow stream
INPUTS = ("multilog", "stream", "arrow", "parquet", "pcap", "pcapng", "tsv", "csv", "ndjson", "flock", "tshark")
PEEK = 64

_PCAP = (b"\xa1\xb2\xc3\xd4", b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"\x4d\x3c\xb2\xa1",
         b"\xa1\xb2\xcd\x34", b"\x34\xcd\xb2\xa1")  # fmt: skip


def is_multilog(path: str) -> bool:
    """Whether the path is a folder that holds a MultiLog (or what is left of one)."""
    return path != "-" and any(os.path.exists(os.path.join(path, name)) for name in ("control", "multilog.yaml"))


def is_archive(path: str) -> bool:
    """Whether the path is a folder that confluo-archive filled, or partitions that somebody copied from one."""
    if path == "-" or is_multilog(path):
        return False
    try:
        with os.scandir(path) as entries:
            return any(entry.name == ".confluo" or entry.name.startswith("host=") for entry in entries)
    except OSError:
        return False


def is_folder(path: str) -> bool:
    try:
        return path != "-" and stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def detect(head: bytes) -> str:
    """The format whose beginning ``head`` (decompressed, `PEEK` bytes or all there are) is; '' when unknown."""
    if head[:4] == b"\xff\xff\xff\xff":
        return "stream"
    if head[:6] == b"ARROW1":
        return "arrow"
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:4] in _PCAP:
        return "pcap"
    if head[:4] == b"\x0a\x0d\x0d\x0a":
        return "pcapng"
    # Arrow streams before version 0.15 begin with the length of the schema message alone.
    if head.startswith((b"#fields", b"#separator")):
        return "tsv"
    if head.startswith((b"Failing_link ", b"FP ", b"FID ")):
        return "flock"
    if head.startswith(b"frame.time_epoch\t"):
        return "tshark"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    if text[:1] == b"{":
        return "ndjson"
    line = head.split(b"\n")[0]
    if line and b"," in line and all(32 <= c < 127 for c in line.rstrip(b"\r")) and not line[:1].isdigit():
        return "csv"
    return ""
