"""Optional fields of packets: in-band telemetry, the digest, and the place in the source capture."""

from __future__ import annotations

TELEMETRY = ("switch_path", "queue_depth", "hop_time", "hop_latency")
DIGEST = "packet_digest"  # of the bytes that stay the same from place to place
PLACE = ("file_offset", "file_number")  # leads back to the packet in its source capture
