"""Columns of TCP packets that `--analyze tcp` and `confluo-replay explain` read, found and checked in one place."""

cimport cython
from confluo_tools.core.block.block cimport Layout, column_number

NEEDED = ("ts", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "tcp_seq", "tcp_ack", "tcp_flags", "tcp_window",
          "payload_len")
ANALYSED = (*NEEDED, "ip_version", "src_ip6", "dst_ip6", "frag_offset", "notes", "tcp_opts", "tcp_wscale")
USED = (*ANALYSED, "tcp_mss", "ip_id", "tcp_tsval", "tcp_tsecr", "tcp_sack", "evidence", "sent_by", "queued",
        "unsent", "held", "cwnd")
WIDTHS = (8, 1, 4, 4, 2, 2, 4, 4, 2, 2, 4, 1, 16, 16, 2, 1, 1, 1, 2, 2, 4, 4, 32, 1, 1, 8, 4, 1, 4)


@cython.final
cdef class TcpColumns:
    """Where the columns of USED are in ``layout``, or the first ones of them, ``names``; payload_len may have 16 bits.

    Raises KeyError when one of NEEDED is missing, ValueError when one has another width than in WIDTHS.
    """

    def __cinit__(self, Layout layout not None, tuple names not None=USED):
        cdef int i, k, width
        self.layout = layout
        if names != USED[:len(names)] or len(names) < NEEDS:
            raise ValueError(names)
        for i in range(USES):
            if i == N_SIZE:
                k = layout.get(USED[i])
                self.narrow = k >= 0 and layout.column[k].width == 2
            width = 2 if i == N_SIZE and self.narrow else WIDTHS[i]
            self.at[i] = column_number(layout, USED[i], width, i < NEEDS) if i < len(names) else -1
        self.ends.src, self.ends.dst = self.at[<int>N_SRC], self.at[<int>N_DST]
        self.ends.sport, self.ends.dport = self.at[<int>N_SPORT], self.at[<int>N_DPORT]
        self.ends.version = self.at[<int>N_VERSION]
        self.ends.src6, self.ends.dst6 = self.at[<int>N_SRC6], self.at[<int>N_DST6]
