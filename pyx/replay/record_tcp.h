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
enum { N_EARLIER = 1, N_CE = 4, N_WAITS = 32, N_CONTINUED = 64, N_MERGED = 256, N_YIELDS = 512, N_RELATIVE = 1024 };

enum { R_RUN = 1, R_BEGIN, R_SYN, R_DIGEST, R_CLOSE, R_END };
enum { DIGEST_PACKETS = 64, DIGESTS = 16, HEADER = 60 };

struct key { u64 a, b; };

struct record {  // R_RUN
    u16 type, kind;
    u32 id;
    u64 ts, step;
    u32 count, tx, rx, number;
    u32 tx_step, rx_step, number_step, flags;
    s64 bytes;
    u64 asked;
    u16 notes;
    u8 call, timer;
    u16 ip_id, segments;
    s32 gap, value;
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
