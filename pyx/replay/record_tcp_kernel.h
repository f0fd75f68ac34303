// Helpers of BPF programs, and the structures of the kernel that the recorder reads.
#pragma once

#include "record_tcp.h"

#define SEC(name) __attribute__((section(name), used))
#define inline inline __attribute__((always_inline))
#define NULL ((void *)0)

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static u64 (*const ktime)(void) = (void *)5;
static long (*const probe_read)(void *to, u32 size, const void *from) = (void *)113;
static long (*const ring_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static void *(*const ring_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const ring_submit)(void *data, u64 flags) = (void *)132;
static void *(*const current_task)(void) = (void *)158;
static void *(*const task_registers)(void *task) = (void *)175;
// The kernel's, without cost: from here on the verifier takes it for a pointer to this type.
extern void *bpf_rdonly_cast(const void *from, u32 type) SEC(".ksyms");

// ---------------------------------------------------------------- the kernel's structures

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common { u32 inum; };
struct net { struct ns_common ns; };
typedef struct { struct net *net; } possible_net_t;
struct net_device { s32 ifindex; possible_net_t nd_net; };
struct in6_addr { union { u32 u6_addr32[4]; } in6_u; };
struct sock_common {
    u32 skc_daddr, skc_rcv_saddr;
    u16 skc_dport, skc_num, skc_family;
    volatile u8 skc_state;
    possible_net_t skc_net;
    struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
};
struct socket { unsigned long flags; };
struct sock {
    struct sock_common __sk_common;
    u16 sk_protocol;
    u8 sk_shutdown;
    struct socket *sk_socket;
};
struct inet_sock { struct sock sk; u16 inet_sport; };
struct tcp_sock { u32 segs_in, copied_seq; };
struct sk_buff {
    struct net_device *dev;
    struct sock *sk;
    u32 len;
    u32 end;
    u16 protocol, network_header;
    unsigned char *head, *data;
};
struct skb_shared_info { u16 gso_segs; };
struct iphdr { u8 tos; u16 tot_len, id, frag_off; u8 protocol; u32 saddr, daddr; };
struct tcphdr { u16 source, dest; u32 seq, ack_seq; u16 window; };
struct iov_iter { unsigned long count; };
struct msghdr { struct iov_iter msg_iter; };
struct timer_list { void *function; };
struct task_struct { unsigned long nvcsw; };
#ifdef __TARGET_x86
struct pt_regs { unsigned long orig_ax, si; };
#define SYSCALL(r) ((r)->orig_ax)
#define ARGUMENT(r) ((r)->si)
#define SYS_shutdown 48
#else
struct user_pt_regs { u64 regs[31]; };
struct pt_regs { struct user_pt_regs user_regs; s32 syscallno; };
#define SYSCALL(r) ((r)->syscallno)
#define ARGUMENT(r) ((r)->user_regs.regs[1])
#define SYS_shutdown 210
#endif
#pragma clang attribute pop

enum { ESTABLISHED = 1, SYN_SENT, SYN_RECV, FIN_WAIT1, TIME_WAIT = 6, CLOSE, LAST_ACK = 9, NEW_SYN_RECV = 12 };
enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };
enum { AF_INET = 2, AF_INET6 = 10, TCP = 6 };
enum { NOSPACE = 1 << 2 };  // SOCK_NOSPACE in the flags of a socket
