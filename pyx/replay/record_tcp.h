// Records that the BPF program of record_tcp.bpf.c writes into its ring, and bpf_records.pyx reads.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;

// Of the schema: kinds and notes.
enum { K_CALL = 4, K_POLL, K_TIMER, K_RX, K_TX, K_RETRANSMIT, K_STATE = 12 };
enum { N_EARLIER = 1, N_CE = 4, N_WAITS = 32, N_CONTINUED = 64, N_MERGED = 256, N_YIELDS = 512, N_RELATIVE = 1024, N_LISTED = 2048 };

enum { R_RUN = 1, R_BEGIN, R_SYN, R_DIGEST, R_CLOSE, R_END };
enum { DIGEST_PACKETS = 64, DIGESTS = 16, HEADER = 60 };

// Times of packets and events are multiples of a slot, so they are within half a slot: less than the threshold of
// DETER, 5 us.  Slots of inputs are shorter: what TCP does depends on their times, and on none of packets sent.
enum { INPUT_BITS = 11, SENT_BITS = 13 };

// Lists of a row: numbers from one event to the next, in one byte below ESCAPE, else in two (big-endian).
enum { LIST = 64, ESCAPE = 240, MOST = (256 - ESCAPE) * 256 - 1 };
enum { L_GAPS, L_TX, L_RX, L_NUMBER, L_SIZES = L_RX, L_MARKS, LISTS };  // sizes and marks: of packets, one byte each
enum { MARK_CE = 1, MARK_MERGED = 2 };

struct key { u64 a, b; };

struct record {  // R_RUN
    u16 type, kind;
    u32 id;
    u64 slot;
    u32 count, tx, rx, number, flags;
    s32 gap;
    s64 bytes;
    u64 asked;
    s32 value;
    u16 notes, ip_id, segments;
    u8 call, timer;
    u32 unused;
    u8 lists[LISTS][LIST];
};

// Packets of one direction that are not in a record yet.
struct packet_run {
    u64 slot;  // of the last packet
    u32 count;
    u32 other;     // packets of the other direction before the last one
    s32 next;      // identification that continues the run; -1: none
    s32 expected;  // after the highest so far; -1: any
    u16 segments, notes, ip_id;
    u16 after;   // identification after the last packet
    u8 used[2];  // bytes of the lists of gaps and of tx
    u64 first;   // slot of the first packet
    u32 tx, rx;
    s32 gap;
    u32 emitted;  // since the last one that was lost
    u32 from_tx, from_rx, from_id;  // the next run is relative to these
    u8 lists[LISTS][LIST];
};

// Equal events that are not in a record yet.
struct event_run {
    u64 slot;  // of the last event
    u32 count;
    u32 last_tx, last_rx, last_number;
    s64 bytes;
    u64 asked;
    u32 flags;
    s32 value;
    u16 notes, kind;
    u8 call, timer, used[LISTS];
    u64 first;  // slot of the first event
    u32 tx, rx, number;
    u32 emitted;  // since the last one that was lost, or was another event
    u32 from_tx, from_rx, from_number;  // the next run is relative to these
    u8 lists[LISTS][LIST];
};

struct begin_record {
    u16 type, role;
    u32 id;
    u64 ts;
    struct key key;
    u8 source[16], destination[16];
    u16 src_port, dst_port;
    u8 version, earlier, unused[2];
    u64 connect;  // when the client began to connect
};

struct syn_record {  // a SYN or SYN-ACK: its TCP header
    u16 type, sent;
    u32 id;
    u64 ts;
    u8 header[HEADER];
    u32 unused;
};

struct digest_record {
    u16 type, count;
    u32 id;
    u64 ts;
    u32 tx, unused;
    u32 digests[DIGESTS];
};

struct close_record {
    u16 type, unused;
    u32 id;
    u64 ts;
    struct key key;
};
