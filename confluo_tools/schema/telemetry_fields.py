"""Fields of packets that captures give only when they are named: in-band telemetry, and the digest."""

from __future__ import annotations

TELEMETRY = ("switch_path", "queue_depth", "hop_time", "hop_latency")
DIGEST = "packet_digest"  # of the bytes that stay the same from place to place
