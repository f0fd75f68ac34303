// Packets: their headers, digests of those that are sent, and runs.
#pragma once

#include "record_tcp_place.h"

struct packet {
    struct key key;
    struct address address;
    const u8 *tcp;  // its TCP header
    u32 seq, ack, len;
    u16 ip_id, window;
    u8 ce, words;
    u16 flags;
};

static inline u32 be32(const u8 *p)
{
    return __builtin_bswap32(*(const u32 *)p);
}

// Reads a packet.  ``sent``: source is this end.  Returns whether it is a TCP packet.
static inline int read_packet(struct packet *p, struct sk_buff *skb, const u8 *ip, int sent)
{
    const struct tcphdr *tcp;
    u32 length, first, last, size, word;
    if (skb->protocol == 0x0008) {
        const struct iphdr *h = bpf_rdonly_cast(ip, settings.iphdr);
        if (h->protocol != TCP || h->frag_off & 0xFF1F)
            return 0;
        size = (*(const u8 *)h & 15) * 4;
        length = __builtin_bswap16(h->tot_len) - size;
        p->ip_id = __builtin_bswap16(h->id);
        p->ce = (h->tos & 3) == 3;
        first = h->saddr;
        last = h->daddr;
        p->address.source[0] = sent ? first : last;
        p->address.destination[0] = sent ? last : first;
        p->address.version = 4;
    } else if (skb->protocol == 0xDD86) {
        u8 six[40];
        if (probe_read(six, 40, ip) || six[6] != TCP)
            return 0;
        size = 40;
        length = __builtin_bswap16(*(u16 *)(six + 4));
        p->ip_id = 0;
        p->ce = (six[1] & 0x30) == 0x30;
        __builtin_memcpy(p->address.source, six + (sent ? 8 : 24), 16);
        __builtin_memcpy(p->address.destination, six + (sent ? 24 : 8), 16);
        p->address.version = 6;
    } else {
        return 0;
    }
    p->tcp = ip + size;
    tcp = bpf_rdonly_cast(p->tcp, settings.tcphdr);
    first = tcp->source;
    last = tcp->dest;
    p->address.ports = sent ? first | last << 16 : last | first << 16;
    p->seq = __builtin_bswap32(tcp->seq);
    p->ack = __builtin_bswap32(tcp->ack_seq);
    p->window = __builtin_bswap16(tcp->window);
    word = *(const u16 *)((const u8 *)tcp + 12);  // length, flags
    p->words = (word & 0xFF) >> 4;
    p->flags = word >> 8 | (word & 1) << 8;
    p->len = length - p->words * 4;
    address_key(&p->key, &p->address);
    return 1;
}

// Not from its length: segments may be shorter than the largest one (time stamps, small writes that GRO merges).
static inline u16 segments_of(struct sk_buff *skb)
{
    const struct skb_shared_info *info = bpf_rdonly_cast(skb->head + skb->end, settings.skb_shared_info);
    u16 n = info->gso_segs;
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

static inline u32 four(const u8 *p)
{
    const struct tcphdr *h = bpf_rdonly_cast(p, settings.tcphdr);
    return h->source | (u32)h->dest << 16;
}

// Where the edges of SACK blocks are in a TCP header, and how many; 0: it has none.  Linux writes two no-operations
// before them, and the time stamp before both.
static inline u32 sack_edges(const struct packet *p, u32 *edges)
{
    u32 at = 20, options;
    if (p->words <= 5)
        return 0;
    options = four(p->tcp + 20);
    if ((options & 0xFFFFFF) == 0x080101 && p->words > 8) {
        at = 32;
        options = four(p->tcp + 32);
    }
    if ((options & 0xFFFFFF) != 0x050101)
        return 0;
    *edges = ((options >> 24) - 2) >> 2;
    return *edges <= 8 ? at + 4 : 0;
}

// As header_digests of replay/recording/digest.py.
static inline void add_digest(struct end *e, const struct packet *p, u64 ts)
{
    u32 peer = e->peer_isn, edges = 0, at = sack_edges(p, &edges);
    u32 d = e->digest;
    if (!at)
        edges = 0;
    d = folded(d, p->seq - e->isn);
    d = folded(d, p->flags & ACK ? p->ack - peer : 0);
    d = folded(d, p->len);
    d = folded(d, p->flags | edges << 9 | (u32)p->window << 16);
    if (edges) {
        u8 sack[32] = {};
        probe_read(sack, sizeof(sack), p->tcp + at);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < edges)
                d = folded(d, be32(sack + i * 4) - peer);
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
