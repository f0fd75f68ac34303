"""Where records come from: capture files, and network interfaces (`sources.nic`, which nobody else need load)."""

from __future__ import annotations

from confluo_tools.sources.captures import Captures, is_capture, open_captures, packet_schema

__all__ = ["Captures", "is_capture", "open_captures", "packet_schema"]
