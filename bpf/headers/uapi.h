/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The part of the kernel's user API that the programs use, as of Linux 5.10:
 * nothing newer may be added without a guard. See README.md for why the
 * system's headers are not included.
 */
#ifndef XTWAMP_UAPI_H
#define XTWAMP_UAPI_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;

/* Values in network byte order. */
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;

typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

/* linux/bpf.h */

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_RINGBUF = 27, /* since 5.8 */
};

#define BPF_F_NO_PREALLOC 1 /* of a map */

#define BPF_NOEXIST 1 /* of an update */

enum { /* bpf_ringbuf_output, bpf_ringbuf_submit */
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
};

enum { BPF_RB_AVAIL_DATA = 0 }; /* bpf_ringbuf_query */

#define BPF_F_RECOMPUTE_CSUM 1	       /* bpf_skb_store_bytes */
#define BPF_F_MARK_MANGLED_0 (1U << 5) /* bpf_l4_csum_replace */

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys; /* a pointer in the kernel's own header */
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	/* The rest is not used here. */
};

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	/* The rest is not used here. */
};

enum xdp_action {
	XDP_ABORTED,
	XDP_DROP,
	XDP_PASS,
	XDP_TX,
};

/* linux/pkt_cls.h */

#define TC_ACT_UNSPEC (-1)
#define TC_ACT_SHOT 2

/* linux/if_packet.h */

#define PACKET_HOST 0

/* net/flow.h in the kernel */

#define LOOPBACK_IFINDEX 1

/* linux/if_ether.h */

#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

struct ethhdr {
	__u8 h_dest[6];
	__u8 h_source[6];
	__be16 h_proto;
};

/* linux/in.h, linux/in6.h */

#define IPPROTO_HOPOPTS 0
#define IPPROTO_UDP 17
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_AH 51
#define IPPROTO_DSTOPTS 60

/* linux/ip.h, linux/ipv6.h, linux/udp.h */

struct iphdr {
	__u8 version_ihl; /* two bit fields in the kernel's own header */
	__u8 tos;
	__be16 tot_len;
	__be16 id;
	__be16 frag_off;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__be32 saddr;
	__be32 daddr;
};

struct ipv6hdr {
	__be32 version_class_flow; /* bit fields in the kernel's own header */
	__be16 payload_len;
	__u8 nexthdr;
	__u8 hop_limit;
	__be64 saddr[2]; /* struct in6_addr in the kernel's own header */
	__be64 daddr[2];
};

struct udphdr {
	__be16 source;
	__be16 dest;
	__be16 len;
	__u16 check;
};

#endif
