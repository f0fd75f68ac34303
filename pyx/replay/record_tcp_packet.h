// Packets: their headers, digests of those that are sent, and runs.
#pragma once

#include "record_tcp_place.h"

struct headers { u8 ip[20]; u8 tcp[HEADER]; };  // of IPv6 only the TCP header

struct packet {
    struct key key;
    struct address address;
    u32 len;
    u16 ip_id;
    u8 ce, flags;
};

static inline u32 be32(const u8 *p)
{
    return __builtin_bswap32(*(const u32 *)p);
}

// Reads ``size`` bytes of the TCP header.  ``sent``: source is this end.  Returns whether it is a TCP packet.
static inline int read_packet(struct packet *p, struct headers *h, struct sk_buff *skb, const u8 *ip, u32 size, int sent)
{
    u32 length, own, other;
    if (skb->protocol == 0x0008) {
        if (probe_read(h, 20 + size, ip) || h->ip[9] != TCP || (h->ip[6] & 0x1F) || h->ip[7])
            return 0;
        if (h->ip[0] != 0x45 && probe_read(h->tcp, size, ip + (h->ip[0] & 15) * 4))
            return 0;
        length = __builtin_bswap16(*(u16 *)(h->ip + 2)) - (h->ip[0] & 15) * 4;
        p->ip_id = __builtin_bswap16(*(u16 *)(h->ip + 4));
        p->ce = (h->ip[1] & 3) == 3;
        own = *(u32 *)(h->ip + (sent ? 12 : 16));
        other = *(u32 *)(h->ip + (sent ? 16 : 12));
        p->address.source[0] = own;
        p->address.destination[0] = other;
        p->address.version = 4;
    } else if (skb->protocol == 0xDD86) {
        u8 six[40];
        if (probe_read(six, 40, ip) || six[6] != TCP || probe_read(h->tcp, size, ip + 40))
            return 0;
        length = __builtin_bswap16(*(u16 *)(six + 4));
        p->ip_id = 0;
        p->ce = (six[1] & 0x30) == 0x30;
        __builtin_memcpy(p->address.source, six + (sent ? 8 : 24), 16);
        __builtin_memcpy(p->address.destination, six + (sent ? 24 : 8), 16);
        p->address.version = 6;
    } else {
        return 0;
    }
    own = *(u16 *)(h->tcp + (sent ? 0 : 2));
    other = *(u16 *)(h->tcp + (sent ? 2 : 0));
    p->address.ports = own | other << 16;
    p->len = length - (h->tcp[12] >> 4) * 4;
    p->flags = h->tcp[13];
    address_key(&p->key, &p->address);
    return 1;
}

static inline u16 segments_of(struct sk_buff *skb)
{
    struct skb_shared_info *info = (void *)(skb->head + skb->end);
    u16 n = 0;
    probe_read(&n, sizeof(n), &info->gso_segs);
    return n ? n : 1;
}

static inline u32 folded(u32 digest, u32 word)
{
    digest = (digest ^ word) * 0x01000193;
    return digest ^ digest >> 15;
}

static inline void emit_digests(struct end *e, u64 ts)
{
    struct digest_record *r = reserve(e, sizeof(*r));
    if (r) {
        r->type = R_DIGEST;
        r->count = e->digests_count;
        r->id = e->id;
        r->ts = ts;
        r->tx = e->digest_from;
        r->unused = 0;
        __builtin_memcpy(r->digests, e->digests, sizeof(r->digests));
        ring_submit(r, NO_WAKEUP);
    }
    e->digest_from += DIGESTS * DIGEST_PACKETS;
    e->digests_count = 0;
}

// As header_digests of replay/recording/digest.py.
static inline void add_digest(struct end *e, const struct packet *p, const u8 *tcp, u64 ts)
{
    u32 peer = e->peer_isn, words = tcp[12] >> 4, edges = 0, at = HEADER;
    u32 d = e->digest;
    // Linux writes two no-operations before SACK blocks, and the time stamp before both.
    if (words > 5 && *(u16 *)(tcp + 20) == 0x0101) {
        if (tcp[22] == 5)
            at = 20;
        else if (tcp[22] == 8 && words > 8 && *(u16 *)(tcp + 32) == 0x0101 && tcp[34] == 5)
            at = 32;
    }
    if (at == 20)
        edges = (tcp[23] - 2u) >> 2;
    else if (at == 32)
        edges = (tcp[35] - 2u) >> 2;
    if (edges > 8)
        edges = 0;
    d = folded(d, be32(tcp + 4) - e->isn);
    d = folded(d, p->flags & ACK ? be32(tcp + 8) - peer : 0);
    d = folded(d, p->len);
    d = folded(d, p->flags | (tcp[12] & 1) << 8 | edges << 9 | (u32)__builtin_bswap16(*(u16 *)(tcp + 14)) << 16);
    if (edges) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < edges) {
                if (at == 20)
                    d = folded(d, be32(tcp + 24 + i * 4) - peer);
                else if (i < 6)
                    d = folded(d, be32(tcp + 36 + i * 4) - peer);
            }
    }
    if (++e->digest_count < DIGEST_PACKETS) {
        e->digest = d;
        return;
    }
    e->digest = 0x811C9DC5;
    e->digest_count = 0;
    e->digests[e->digests_count % DIGESTS] = d;
    if (++e->digests_count == DIGESTS)
        emit_digests(e, ts);
}

static inline void emit_syn(struct end *e, const u8 *header, u64 ts, int sent)
{
    struct syn_record *r;
    u32 seq = be32(header + 4);
    if (sent ? e->has_isn : e->has_peer_isn)
        return;
    if (sent) {
        e->isn = seq;
        e->has_isn = 1;
    } else {
        e->peer_isn = seq;
        e->has_peer_isn = 1;
    }
    // Linux writes the option for the largest segment first.
    if (header[20] == 2 && header[21] == 4) {
        u16 mss = __builtin_bswap16(*(u16 *)(header + 22));
        if (!e->mss || mss < e->mss)
            e->mss = mss;
    }
    r = reserve(e, sizeof(*r));
    if (!r)
        return;
    r->type = R_SYN;
    r->sent = sent;
    r->id = e->id;
    r->ts = ts;
    r->unused = 0;
    __builtin_memcpy(r->header, header, HEADER);
    ring_submit(r, NO_WAKEUP);
}

static inline void processed(struct end *e, u64 ts, u16 ip_id, u16 segments, u16 notes, int first)
{
    add_packet(e, &e->received, K_RX, ts, ip_id, segments, notes, first);
    e->rx++;
    e->last = ts;
}
