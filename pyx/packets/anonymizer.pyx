"""Anonymisation of addresses, in columns of records and in frames."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from c_crypto_pan cimport Aes128, Pan, aes_encrypt, aes_set_key, hide4, hide6, hide_mac, hide_port, pan_set_key
from c_anonymous_frame cimport NOT_HIDDEN, hide_frame
from c_inet cimport flow_hash, pair_hash
from c_ipv6_hash cimport fold6
cimport cython

cdef enum:
    KEY = 32
    SLACK = 64                  # zeros after a frame, so that no read can leave the buffer
    VERSION4 = 4
    VERSION6 = 6
    ICMP = 1
    ICMP6 = 58


def aes(const uint8_t[::1] key not None, const uint8_t[::1] data not None, *, bint portable=False):
    """The blocks of `data`, encrypted by AES-128; for tests of the cipher.  `portable`: without instructions for it."""
    cdef Aes128 cipher
    cdef bytes out = PyBytes_FromStringAndSize(NULL, data.shape[0] & ~15)
    if key.shape[0] != 16:
        raise ValueError("a key has 16 bytes")
    aes_set_key(&cipher, &key[0])
    if portable:
        cipher.fast = 0
    if len(out):
        aes_encrypt(&cipher, &data[0], <uint8_t*>PyBytes_AS_STRING(out), <uint32_t>(len(out) >> 4))
    return out


@cython.final
cdef class Anonymizer:
    """One key: 16 bytes of the cipher, then 16 bytes from which the pad is made.

    `keep_mac`, `keep_oui`, `keep_payload`: what stays as it is; `ports`: ports become others.
    """

    cdef Pan* pan

    def __cinit__(self, const uint8_t[::1] key not None, *, bint keep_mac=False, bint keep_oui=False,
                  bint keep_payload=False, bint ports=False):
        if key.shape[0] != KEY:
            raise ValueError(f"a key has {KEY} bytes")
        self.pan = <Pan*>calloc(1, sizeof(Pan))
        if self.pan == NULL:
            raise MemoryError
        pan_set_key(self.pan, &key[0])
        self.pan.keep_mac, self.pan.keep_oui = keep_mac, keep_oui
        self.pan.keep_payload, self.pan.ports = keep_payload, ports

    def __dealloc__(self):
        if self.pan != NULL:
            memset(self.pan, 0, sizeof(Pan))
            free(self.pan)

    def address(self, const uint8_t[::1] address not None):
        """One address of 4 or 16 bytes."""
        cdef uint8_t out[16]
        cdef uint32_t word
        if address.shape[0] == 16:
            memcpy(out, &address[0], 16)
            hide6(self.pan, out)
            return out[:16]
        if address.shape[0] != 4:
            raise ValueError("an address has 4 or 16 bytes")
        word = hide4(self.pan, <uint32_t>address[0] << 24 | <uint32_t>address[1] << 16
                     | <uint32_t>address[2] << 8 | address[3])
        return word.to_bytes(4, "big")

    def frame(self, const uint8_t[::1] data not None, uint32_t wire, uint16_t link):
        """A captured frame with `wire` bytes on the wire; shorter if some must not be shown.

        None: frames of this link type may have addresses anywhere.
        """
        cdef uint32_t n = <uint32_t>data.shape[0], left
        cdef uint8_t* copy = <uint8_t*>calloc(n + SLACK, 1)
        if copy == NULL:
            raise MemoryError
        try:
            if n:
                memcpy(copy, &data[0], n)
            left = hide_frame(self.pan, copy, n, wire if wire > n else n, link)
            return None if left == NOT_HIDDEN else copy[:left if left < n else n]
        finally:
            free(copy)

    def frames(self, const uint8_t[::1] raw not None, uint32_t width, uint32_t[::1] captured not None,
               const uint32_t[::1] wire not None, const uint16_t[::1] link not None):
        """The first `width` bytes of frames; `captured` gets how many of them there are now."""
        cdef Py_ssize_t i, n = captured.shape[0]
        cdef uint32_t size, left
        cdef bytes out
        cdef uint8_t* rows
        cdef uint8_t* copy
        if raw.shape[0] < n * width or wire.shape[0] < n or link.shape[0] < n:
            raise ValueError("columns of different lengths")
        out = bytes(n * width)
        rows = <uint8_t*>PyBytes_AS_STRING(out)
        copy = <uint8_t*>calloc(width + SLACK, 1)
        if copy == NULL:
            raise MemoryError
        with nogil:
            for i in range(n):
                size = captured[i] if captured[i] < width else width
                memset(copy, 0, width + SLACK)
                memcpy(copy, &raw[i * width], size)
                left = hide_frame(self.pan, copy, size, wire[i] if wire[i] > size else size, link[i])
                if left == NOT_HIDDEN:
                    left = 0
                captured[i] = left if left < size else size
                memcpy(rows + i * width, copy, captured[i])
        free(copy)
        return out

    def ipv4(self, uint32_t[::1] words not None):
        """A column of IPv4 addresses, or of the elements of lists, in place.  0 stays: it means absent."""
        cdef Py_ssize_t i
        with nogil:
            for i in range(words.shape[0]):
                if words[i]:
                    words[i] = hide4(self.pan, words[i])

    def ip(self, uint32_t[::1] words not None, uint8_t[::1] wide not None, const uint8_t[::1] version=None):
        """The two columns of a field of type ip, in place.  `version`: 4, 6, or 0 for none."""
        cdef Py_ssize_t i
        cdef uint8_t* p
        cdef const uint64_t* half
        cdef bint known = version is not None
        if wide.shape[0] < 16 * words.shape[0] or (known and version.shape[0] < words.shape[0]):
            raise ValueError("columns of different lengths")
        with nogil:
            for i in range(words.shape[0]):
                p = &wide[16 * i]
                half = <const uint64_t*>p
                if half[0] or half[1] or (version[i] == VERSION6 if known else words[i] == 1):
                    hide6(self.pan, p)
                    words[i] = fold6(p)
                elif words[i] or (known and version[i] == VERSION4):
                    words[i] = hide4(self.pan, words[i])

    def macs(self, uint64_t[::1] values not None):
        """A column of MAC addresses, in place."""
        cdef Py_ssize_t i
        with nogil:
            for i in range(values.shape[0]):
                values[i] = hide_mac(self.pan, values[i])

    def hide_ports(self, uint16_t[::1] values not None, const uint8_t[::1] proto=None):
        """A column of ports, in place, if ports become others.  `proto`: those of ICMP are types and stay."""
        cdef Py_ssize_t i
        cdef bint known = proto is not None
        if known and proto.shape[0] < values.shape[0]:
            raise ValueError("columns of different lengths")
        with nogil:
            for i in range(values.shape[0]):
                if not known or (proto[i] != ICMP and proto[i] != ICMP6):
                    values[i] = hide_port(self.pan, values[i])


def flow_hashes(uint32_t[::1] old not None, const uint32_t[::1] source not None, const uint32_t[::1] target not None,
                const uint16_t[::1] sport not None, const uint16_t[::1] dport not None,
                const uint8_t[::1] proto not None, const uint8_t[::1] version=None,
                const uint64_t[::1] mac=None, const uint64_t[::1] to_mac=None, const uint16_t[::1] type=None):
    """The hashes of these flows, in place; rows without one stay without.

    `version`: rows with 0 are not IP: their hash is that of their MAC addresses and their type.
    """
    cdef Py_ssize_t i, n = old.shape[0]
    cdef bint known = version is not None
    if min(source.shape[0], target.shape[0], sport.shape[0], dport.shape[0], proto.shape[0]) < n or (
            known and min(version.shape[0], mac.shape[0], to_mac.shape[0], type.shape[0]) < n):
        raise ValueError("columns of different lengths")
    with nogil:
        for i in range(n):
            if old[i]:
                if known and version[i] == 0:
                    old[i] = pair_hash(mac[i], to_mac[i], type[i])
                else:
                    old[i] = flow_hash(source[i], target[i], sport[i], dport[i], proto[i])
