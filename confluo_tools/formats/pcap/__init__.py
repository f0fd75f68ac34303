"""Capture files: open, read and write pcap and pcapng."""

from __future__ import annotations

from confluo_tools.formats.pcap.files import Captures, is_capture, open_captures, packet_schema

__all__ = ["Captures", "is_capture", "open_captures", "packet_schema"]
