"""Values of the enums and flags of the schema `recording`."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Kind(IntEnum):
    BEGIN = 1
    END = 2
    SETTING = 3
    CALL = 4
    POLL = 5
    TIMER = 6
    RX = 7
    TX = 8
    RETRANSMIT = 9
    DIGEST = 10
    PROBE = 11
    STATE = 12
    SENT = 13
    RECEIVED = 14
    LOST = 15


# Kinds with a number in the order of their end.  Calls, polls and timers are inputs; the others are what TCP did.
ORDERED = frozenset({Kind.CALL, Kind.POLL, Kind.TIMER, Kind.RETRANSMIT, Kind.PROBE, Kind.STATE})


class Call(IntEnum):
    CONNECT = 1
    ACCEPT = 2
    SEND = 3
    RECV = 4
    SHUTDOWN = 5
    CLOSE = 6
    SETSOCKOPT = 7


class Timer(IntEnum):
    WRITE = 1
    DELACK = 2
    KEEPALIVE = 3
    SACK_ACK = 4
    PACE = 5
    TSQ = 6


class Role(IntEnum):
    CLIENT = 1
    SERVER = 2


class Note(IntFlag):
    EARLIER = 1
    CUT = 2
    CE = 4
    MAPPED = 8
    UNREPLAYABLE = 16
    WAITS = 32
    CONTINUED = 64
    GUESSED = 128
    MERGED = 256
    YIELDS = 512
    RELATIVE = 1024
    LISTED = 2048


RECORDING_SHIFT = 32  # upper bits of a cookie: the recording that has the connection
DIGEST_PACKETS = 64  # packets of one digest
DIGESTS = 16  # digests of a row
OUT_OF_SEQUENCE = "its IP identifications are not in sequence"  # a problem of an end
