"""Speed, delay and buffer of the links and switches of a network; all are optional in confluo-topology(5)."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_SPEED = 8 * 10**12  # bits a second: a byte takes at least 1 ps
MIN_SPEED = 10_000
MAX_DELAY = 10**12  # ns


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """A link: ``speed`` in bits a second, ``delay`` (propagation) in ns."""

    speed: int = 10 * 10**9
    delay: int = 1000


@dataclass(frozen=True, slots=True)
class SwitchBuffer:
    """The packet buffer of a switch: bytes that all its queues share.

    A queue may use ``alpha`` / 1024 times what is free (dynamic threshold); with 0, ``size`` bytes are its own.
    """

    size: int = 2_000_000
    alpha: int = 4096


LINK = LinkSpeed()
BUFFER = SwitchBuffer()


@dataclass
class Hardware:
    """``link`` between switches, ``server_link``, ``buffer``: what links and switches have that are not named.

    ``links`` {(from, to): its own}, both directions; ``buffers`` {switch: its own}.  Nodes as in `Topology`.
    """

    link: LinkSpeed = LINK
    server_link: LinkSpeed = LINK
    buffer: SwitchBuffer = BUFFER
    links: dict[tuple[int, int], LinkSpeed] = field(default_factory=dict)
    buffers: dict[int, SwitchBuffer] = field(default_factory=dict)
