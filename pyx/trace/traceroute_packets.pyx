"""Single probes and ICMP errors as `Prober` makes and reads them: for tests, and for those who want to look."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from c_traceroute_packets cimport (
    BAD, EXCEEDED, MAX_HOPS, NOT_OURS, Kind, Quote, Tuple, craft, fill, read_icmp4, read_icmp6)


def quoted(int version, bytes packet not None, bytes sender=b""):
    """What an ICMP error says: None when it is none of a TCP probe, else ("exceeded" | "unreachable", sender, source,
    destination, source port, destination port, sequence number, IP ID).  ``packet`` as a raw ICMP socket gives it.

    Raises ValueError when it is cut short or its checksum is wrong.
    """
    cdef Quote q
    cdef Kind kind
    if version == 4:
        kind = read_icmp4(&q, <const uint8_t*><const char*>packet, <uint32_t>len(packet))
    elif len(sender) == 16:
        kind = read_icmp6(&q, <const uint8_t*><const char*>packet, <uint32_t>len(packet),
                          <const uint8_t*><const char*>sender)
    else:
        raise ValueError("no sender")
    if kind == BAD:
        raise ValueError("cut short, or a wrong checksum")
    if kind == NOT_OURS:
        return None
    size = 4 if version == 4 else 16
    ports = (<const uint8_t*>&q.flow.sport)[:2] + (<const uint8_t*>&q.flow.dport)[:2]
    return ("exceeded" if kind == EXCEEDED else "unreachable", q.sender[:size], q.flow.src[:size], q.flow.dst[:size],
            int.from_bytes(ports[:2], "big"), int.from_bytes(ports[2:], "big"), q.seq, q.id)


def probe(int version, bytes src not None, bytes dst not None, uint16_t sport, uint16_t dport, uint32_t hop,
          uint32_t secret):
    """The bytes of one probe as they are handed to the kernel."""
    cdef Tuple t
    cdef uint8_t out[64]
    cdef uint32_t n, size = 4 if version == 4 else 16
    if version not in (4, 6) or len(src) != size or len(dst) != size or not 1 <= hop <= MAX_HOPS or secret >> 28:
        raise ValueError("no such probe")
    fill(&t, version, src, dst, sport, dport)
    n = craft(out, &t, secret << 4 | hop, hop)
    return out[:n]
