/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a frame to a UDP header. Nothing in here knows which hook it runs in,
 * which paths there are, or what becomes of the packet.
 */
#ifndef XTWAMP_PARSE_H
#define XTWAMP_PARSE_H

#define IP_VERSION_4_NO_OPTIONS 0x45 /* header of five words */
#define IP_FRAGMENT_BITS 0x3fff	     /* MF and the offset; not DF */

struct cursor {
	void *pos;
	void *end;
};

/*
 * The only bounds check of the packet there is.
 *
 * Without CAP_PERFMON the verifier lets a packet pointer be compared with the
 * packet's end and with nothing else. The assumption keeps clang from testing
 * for NULL what has passed that.
 */
static __always_inline const void *take(struct cursor *c, __u32 n)
{
	void *p = c->pos;

	if (p + n > c->end)
		return NULL;
	__builtin_assume(p != NULL);
	c->pos = p + n;
	return p;
}

/* The parsers return NULL, and say why, for what is no UDP packet they read. */

static __always_inline const struct iphdr *parse_ip4(struct cursor *c, enum verdict *why)
{
	const struct iphdr *ip = take(c, sizeof(*ip));

	*why = VERDICT_UNPARSED;
	if (!ip)
		return NULL;
	if (ip->protocol != IPPROTO_UDP) {
		*why = VERDICT_NOT_UDP;
		return NULL;
	}
	if (ip->version_ihl != IP_VERSION_4_NO_OPTIONS) {
		if (ip->version_ihl > IP_VERSION_4_NO_OPTIONS && ip->version_ihl < 0x50)
			*why = VERDICT_IP_OPTIONS;
		return NULL;
	}
	if (ip->frag_off & bpf_htons(IP_FRAGMENT_BITS)) {
		*why = VERDICT_FRAGMENT;
		return NULL;
	}
	return ip;
}

static __always_inline const struct ipv6hdr *parse_ip6(struct cursor *c, enum verdict *why)
{
	const struct ipv6hdr *ip = take(c, sizeof(*ip));

	*why = VERDICT_UNPARSED;
	if (!ip)
		return NULL;
	switch (ip->nexthdr) {
	case IPPROTO_UDP:
		break;
	case IPPROTO_FRAGMENT:
		*why = VERDICT_FRAGMENT;
		return NULL;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_AH:
	case IPPROTO_DSTOPTS:
		*why = VERDICT_EXTENSION_HEADER;
		return NULL;
	default:
		*why = VERDICT_NOT_UDP;
		return NULL;
	}
	if (bpf_ntohl(ip->version_class_flow) >> 28 != 6)
		return NULL;
	return ip;
}

static __always_inline void map_address(__be64 to[2], __be32 ip4)
{
	to[0] = 0;
	to[1] = (__u64)ip4 << 32 | bpf_htonl(0xffff); /* little-endian, as the object is */
}

/* What is needed of the headers of a packet, beside its key. */
struct flow {
	__u64 time; /* CLOCK_MONOTONIC of what comes in */
	__u32 udp_offset;
	__u32 ip_length;  /* of what IP carries */
	__u32 udp_length; /* of header and payload */
	__u32 length;	  /* of the payload */
	__u16 check;
	__u8 ttl;
	__u8 tos;
	bool ip4;
};

#endif
