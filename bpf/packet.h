/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet in either of the two hooks that programs here run in. */
#ifndef XTWAMP_PACKET_H
#define XTWAMP_PACKET_H

/*
 * One of the two is NULL, and the compiler knows which: each program comes out
 * as if it had been written for its hook alone.
 */
struct packet {
	struct __sk_buff *skb; /* tc */
	struct xdp_md *xdp;    /* XDP: always with an Ethernet header */
};

static __always_inline struct packet tc_packet(struct __sk_buff *skb)
{
	__builtin_assume(skb != NULL);
	return (struct packet){ .skb = skb };
}

static __always_inline struct packet xdp_packet(struct xdp_md *xdp)
{
	__builtin_assume(xdp != NULL);
	return (struct packet){ .xdp = xdp };
}

/* Bytes in front of the IP header: ETH_HLEN, or 0 on devices without such. */
volatile const __u32 link_header = ETH_HLEN;

/* A constant with XDP, where no variable may be added to a pointer. */
static __always_inline __u32 link_length(const struct packet *p)
{
	return p->xdp ? ETH_HLEN : link_header;
}

static __always_inline struct cursor cursor_of(const struct packet *p)
{
	if (p->xdp)
		return (struct cursor){
			.pos = (void *)(long)p->xdp->data,
			.end = (void *)(long)p->xdp->data_end,
		};
	return (struct cursor){
		.pos = (void *)(long)p->skb->data,
		.end = (void *)(long)p->skb->data_end,
	};
}

/*
 * Where the UDP header is of a packet that has been parsed, with XDP. Moving
 * the frame's start makes the pointers void that were there before.
 */
static __always_inline struct cursor udp_of(const struct packet *p, bool ip4)
{
	struct cursor c = cursor_of(p);

	/* Whole for each family, lest the compiler add a variable to one pointer. */
	if (ip4) {
		c.pos += ETH_HLEN + sizeof(struct iphdr);
		barrier_var(c.pos);
	} else {
		c.pos += ETH_HLEN + sizeof(struct ipv6hdr);
		barrier_var(c.pos);
	}
	return c;
}

/*
 * Whether the packet has n bytes, at least ETH_HLEN. With XDP the kernel says
 * so: less than ETH_HLEN from its end no frame can be made to begin. What comes
 * out of subtracting pointers may be used with CAP_PERFMON only.
 */
static __always_inline bool has_bytes(const struct packet *p, __u32 n)
{
	int skip = n - ETH_HLEN;

	if (p->skb)
		return n <= p->skb->len;
	return !bpf_xdp_adjust_head(p->xdp, skip) && !bpf_xdp_adjust_head(p->xdp, -skip);
}

static __always_inline __u32 ifindex_of(const struct packet *p)
{
	return p->xdp ? p->xdp->ingress_ifindex : p->skb->ifindex;
}

/* What comes next in a packet. Reads the link header, if there is one. */
static __always_inline bool read_protocol(const struct packet *p, struct cursor *c,
					  __be16 *protocol)
{
	const struct ethhdr *eth;

	if (p->skb && !link_header) {
		*protocol = p->skb->protocol;
		return true;
	}
	eth = take(c, sizeof(*eth));
	if (!eth)
		return false;
	*protocol = eth->h_proto;
	return true;
}

/*
 * What most packets that a host forwards are at first sight, NOT_IP or NOT_UDP;
 * else UNPARSED. To be asked in front of a function, whose frame costs as much.
 */
static __always_inline enum verdict first_sight(const struct packet *p)
{
	struct cursor c = cursor_of(p);
	enum verdict why = VERDICT_UNPARSED;
	__be16 protocol;

	if (!read_protocol(p, &c, &protocol))
		return VERDICT_UNPARSED;
	if (protocol == bpf_htons(ETH_P_IP))
		parse_ip4(&c, &why);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		parse_ip6(&c, &why);
	else
		return VERDICT_NOT_IP;
	return why == VERDICT_NOT_UDP ? VERDICT_NOT_UDP : VERDICT_UNPARSED;
}

#endif
