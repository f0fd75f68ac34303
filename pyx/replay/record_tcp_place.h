// Which connection a packet or a socket belongs to.
#pragma once

#include "record_tcp_end.h"

static inline u64 mixed(u64 h, u64 word)
{
    h = (h ^ word) * 0x9E3779B97F4A7C15ULL;
    return h ^ h >> 29;
}

// Of an address and port of this end and of the other end, in network order; ``ports``: own | other << 16.
static inline void key4(struct key *k, u32 source, u32 destination, u32 ports)
{
    k->a = source | (u64)destination << 32;
    k->b = ports;
}

static inline void key6(struct key *k, const u32 *source, const u32 *destination, u32 ports)
{
    u64 a = mixed(mixed(1, source[0] | (u64)source[1] << 32), source[2] | (u64)source[3] << 32);
    u64 b = mixed(mixed(2, destination[0] | (u64)destination[1] << 32), destination[2] | (u64)destination[3] << 32);
    k->a = a ^ b << 1;
    k->b = (mixed(a, b) | 1) << 32 | ports;
}

static inline int mapped(const u32 *address)
{
    return !address[0] && !address[1] && address[2] == 0xFFFF0000;
}

struct address { u32 source[4], destination[4], ports; u8 version; };

static inline u32 both_ports(u16 own, u16 other)
{
    return __builtin_bswap16(own) | (u32)other << 16;
}

static inline void socket_address(struct address *to, const struct sock *sk)
{
    to->ports = both_ports(sk->__sk_common.skc_num, sk->__sk_common.skc_dport);
    to->version = 4;
    if (sk->__sk_common.skc_family == AF_INET6) {
        to->source[0] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[0];
        to->source[1] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[1];
        to->source[2] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[2];
        to->source[3] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[3];
        to->destination[0] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[0];
        to->destination[1] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[1];
        to->destination[2] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[2];
        to->destination[3] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[3];
        if (!mapped(to->destination)) {
            to->version = 6;
            return;
        }
    }
    to->source[0] = sk->__sk_common.skc_rcv_saddr;
    to->destination[0] = sk->__sk_common.skc_daddr;
}

static inline void address_key(struct key *k, const struct address *a)
{
    if (a->version == 6)
        key6(k, a->source, a->destination, a->ports);
    else
        key4(k, a->source[0], a->destination[0], a->ports);
}

static inline int ours(const struct sock *sk)
{
    return sk->__sk_common.skc_net.net->ns.inum == settings.netns;
}

// Whether it is a socket, not the smaller thing that stands for one before it is accepted or after it has closed.
static inline int whole(const struct sock *sk)
{
    u8 state = sk->__sk_common.skc_state;
    return state != NEW_SYN_RECV && state != TIME_WAIT;
}

static inline struct end *end_of(const struct sock *sk)
{
    struct address a;
    struct key k;
    if (!ours(sk))
        return NULL;
    socket_address(&a, sk);
    address_key(&k, &a);
    return map_lookup(&ends, &k);
}

static inline int wanted(u32 ports)
{
    u16 own = __builtin_bswap16(ports), other = __builtin_bswap16(ports >> 16);
    if (!settings.ports)
        return 1;
    for (int i = 0; i < PORTS; i++) {
        if (i >= settings.ports)
            break;
        if (settings.port[i] == own || settings.port[i] == other)
            return 1;
    }
    return 0;
}

// A new end; one that has its place, of a connection before, goes into the ring.
static inline struct end *make(const struct key *k, const struct address *a, u64 ts, u8 role, int earlier, u64 connect)
{
    u32 zero = 0;
    struct end *e = map_lookup(&ends, k), *none = map_lookup(&blank, &zero);
    struct begin_record *r;
    if (!none)
        return NULL;
    if (e && ring_output(&records, e, sizeof(*e), NO_WAKEUP))
        __sync_fetch_and_add(&counters.lost, 1);
    if (map_update(&ends, k, none, 0)) {
        __sync_fetch_and_add(&counters.excess, 1);
        return NULL;
    }
    e = map_lookup(&ends, k);
    if (!e)
        return NULL;
    e->type = R_END;
    e->id = __sync_fetch_and_add(&counters.made, 1) + 1;
    e->role = role;
    e->last = ts;
    e->digest = 0x811C9DC5;
    e->isn = e->peer_isn = earlier ? 0xFFFFFFFF : 0;
    e->out_interface = e->in_interface = -1;
    e->probed = earlier;
    r = reserve(e, sizeof(*r));
    if (!r)
        return e;
    __builtin_memset(r, 0, sizeof(*r));
    r->type = R_BEGIN;
    r->role = role;
    r->id = e->id;
    r->ts = ts;
    r->key = *k;
    r->version = a->version;
    *(u32 *)r->source = a->source[0];
    *(u32 *)r->destination = a->destination[0];
    if (a->version == 6) {
        __builtin_memcpy(r->source, a->source, 16);
        __builtin_memcpy(r->destination, a->destination, 16);
    }
    r->src_port = __builtin_bswap16(a->ports);
    r->dst_port = __builtin_bswap16(a->ports >> 16);
    r->earlier = earlier;
    r->connect = connect;
    ring_submit(r, NO_WAKEUP);
    return e;
}
