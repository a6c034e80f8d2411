/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
//go:build ignore

/*
 * xtwamp_reflect answers test packets where they come in, at tc ingress, and
 * sends the answer out of the same interface; xtwamp_reflect_xdp does so in
 * XDP. Whatever they do not answer or refuse goes on to the socket behind them,
 * unchanged: our socket reflector, whose answers are the same. This is an
 * object of its own, since a reflector has no use for the maps of the measuring
 * side, nor that for these.
 *
 * What xtwamp.bpf.c says about kernels and CAP_PERFMON holds here too. At tc,
 * packets are written by helpers only: direct writes would make the kernel
 * unshare every cloned packet that passes, also those that are not ours.
 */

#include "uapi.h"
#include <bpf_helpers.h>
#include <bpf_endian.h>

#include "abi.h"
#include "parse.h"
#include "packet.h"
#include "checksum.h"
#include "reflect.h"
#include "answer.h"

/* Counts foreign traffic by verdict too. Packet tests want to see every exit. */
volatile const bool count_foreign = false;

/* Shortest time between two requests of one source, in ns: 1 s / rate limit. */
volatile const __u64 request_interval = 0;

/* A bit for each port that our sockets are bound to: all other traffic is told by it. */
__u64 ports[65536 / 64];

/*
 * CLOCK_MONOTONIC until which user space stands behind all of this. A filter on
 * clsact outlives a killed process, whose port may be another's by now.
 */
__u64 good_until;

/* max_entries of these are set by the loader. */

/* Where our sockets listen, with no wildcards: any of these is in the namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct listen_key);
	__type(value, struct listener);
} listeners SEC(".maps");

/* Allowed addresses. Those of peers keep their bucket whatever others do. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, struct bucket);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* the only kind there is */
	__type(key, struct prefix_key);
	__type(value, __u8);
} prefixes SEC(".maps");

/* Of sources that are allowed by their prefix. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, struct bucket);
} buckets SEC(".maps");

/*
 * Whoever attaches the program makes the entries of an interface. One array of
 * all verdicts per interface would want a variable added to a pointer, which
 * needs CAP_PERFMON where two branches meet.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct counter_key);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline bool is_ours(__be16 wire)
{
	__u16 port = bpf_ntohs(wire);

	return ports[port / 64] >> port % 64 & 1;
}

static __always_inline bool read_udp(struct cursor *c, struct request *r, enum verdict *why)
{
	const struct udphdr *udp = take(c, sizeof(*udp));

	*why = VERDICT_UNPARSED;
	if (!udp)
		return false;
	*why = VERDICT_OTHER_PORT;
	if (!is_ours(udp->dest))
		return false;
	r->received = bpf_ktime_get_ns();
	r->source_port = udp->source;
	r->destination_port = udp->dest;
	r->udp_length = bpf_ntohs(udp->len);
	r->check = udp->check;
	return true;
}

static __always_inline bool read_headers(const struct packet *p, struct request *r,
					 enum verdict *why)
{
	struct cursor c = cursor_of(p);
	__be16 protocol;

	*why = VERDICT_UNPARSED;
	if (!read_protocol(p, &c, &protocol))
		return false;
	if (protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = parse_ip4(&c, why);

		if (!ip || !read_udp(&c, r, why))
			return false;
		map_address(r->source.words, ip->saddr);
		map_address(r->destination.words, ip->daddr);
		r->ip4 = true;
		r->ttl = ip->ttl;
		r->udp_offset = link_length(p) + sizeof(*ip);
		r->ip_length = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		return true;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = parse_ip6(&c, why);

		if (!ip || !read_udp(&c, r, why))
			return false;
		r->source.words[0] = ip->saddr[0];
		r->source.words[1] = ip->saddr[1];
		r->destination.words[0] = ip->daddr[0];
		r->destination.words[1] = ip->daddr[1];
		r->ip4 = false;
		r->ttl = ip->hop_limit;
		r->udp_offset = link_length(p) + sizeof(*ip);
		r->ip_length = bpf_ntohs(ip->payload_len);
		return true;
	}
	*why = VERDICT_NOT_IP;
	return false;
}

/* Our socket that listens there, or NULL. */
static __always_inline const struct listener *listener_at(const struct packet *p,
							  const struct address *a, __be16 port)
{
	/* XDP sees first what is for a device above this one, tags taken off. */
	struct listen_key key = {
		.address = *a,
		.port = port,
		.device = p->xdp ? ifindex_of(p) : 0,
	};

	return bpf_map_lookup_elem(&listeners, &key);
}

/* Whether an answer may go to where the request says it came from. */
static __always_inline bool proper(const struct packet *p, const struct request *r)
{
	bool loopback;

	if (r->source_port == 0) /* RFC 768: nobody waits for an answer */
		return false;
	if (r->ip4) {
		__u32 source = bpf_ntohl(r->source.words[1] >> 32);
		__u32 destination = bpf_ntohl(r->destination.words[1] >> 32);

		if (source == 0 || source >> 28 == 0xe || source == 0xffffffff)
			return false;
		loopback = source >> 24 == 127 || destination >> 24 == 127;
	} else {
		const __u64 one = (__u64)bpf_htonl(1) << 32;
		const __u64 mapped = bpf_htonl(0xffff);

		if ((r->source.words[0] & 0xff) == 0xff) /* multicast */
			return false;
		if (r->source.words[0] == 0 &&
		    (r->source.words[1] == 0 || (__u32)r->source.words[1] == mapped))
			return false;
		loopback = (r->source.words[0] == 0 && r->source.words[1] == one) ||
			   (r->destination.words[0] == 0 && r->destination.words[1] == one);
	}
	if (ifindex_of(p) == LOOPBACK_IFINDEX)
		return true;
	/* What we send comes in by loopback alone: this was forged. */
	return !loopback && !listener_at(p, &r->source, r->destination_port);
}

/* The bucket of a source, or NULL if it is not allowed. */
static __always_inline struct bucket *bucket_of(const struct address *source, bool ip4)
{
	struct bucket *b = bpf_map_lookup_elem(&peers, source);
	struct prefix_key key = { .length = 32 + 128, .family = ip4 ? 4 : 6 };
	struct bucket fresh = {};

	if (b)
		return b;
	__builtin_memcpy(key.address, source, sizeof(key.address));
	if (!bpf_map_lookup_elem(&prefixes, &key))
		return NULL;
	b = bpf_map_lookup_elem(&buckets, source);
	if (b)
		return b;
	/* One that another CPU has just made is as good. */
	bpf_map_update_elem(&buckets, source, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&buckets, source);
}

/*
 * Takes a token. The bucket is the time up to which requests are paid for; it
 * falls behind by a second at most, which is the burst. Addition is atomic but
 * its result is not known (5.12), so that CPUs which ask at the same instant
 * may get one token too many each. None gets lost.
 */
static __always_inline bool take_token(struct bucket *b, __u64 now)
{
	__u64 paid = b->paid;

	if (now > SECOND && paid < now - SECOND) {
		paid = now - SECOND;
		b->paid = paid;
	}
	if (paid + request_interval > now)
		return false;
	__sync_fetch_and_add(&b->paid, request_interval);
	return true;
}

/* Whether the link layer meant this host. */
static __always_inline bool for_us(const struct packet *p, const struct listener *l)
{
	struct cursor c = cursor_of(p);
	const struct ethhdr *eth;

	if (p->skb)
		return p->skb->pkt_type == PACKET_HOST;
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return false;
	return *(__u32 *)eth->h_dest == *(__u32 *)l->mac &&
	       *(__u16 *)(eth->h_dest + 4) == *(__u16 *)(l->mac + 4);
}

/*
 * Fills in the checksum that a local peer has left to hardware which is not
 * there (CHECKSUM_PARTIAL, the sum of the pseudo header). Nobody behind XDP
 * does. A complete one that looks alike comes out as it was.
 */
static __always_inline bool complete_checksum(const struct packet *p, struct request *r)
{
	__u64 sum = pseudo_sum(r->source.words, r->destination.words, r->udp_length);

	if (r->check != sum)
		return true;
	sum += (__u64)r->source_port + r->destination_port + bpf_htons(r->udp_length);
	if (!add_bytes(p, r->udp_offset + sizeof(struct udphdr),
		       r->udp_length - sizeof(struct udphdr), &sum))
		return false;
	r->check = checksum(sum);
	return true;
}

static __always_inline enum reflect_verdict reflect(const struct packet *p)
{
	const struct listener *listener;
	struct bucket *bucket;
	enum verdict why;
	struct request r;
	__u32 length;

	if (!read_headers(p, &r, &why))
		return (enum reflect_verdict)why;
	listener = listener_at(p, &r.destination, r.destination_port);
	if (!listener)
		return REFLECT_OTHER_ADDRESS;
	if (r.received > good_until)
		return REFLECT_STALE;
	if (p->skb && p->skb->vlan_present)
		return REFLECT_TAGGED;
	if (p->skb && p->skb->gso_segs > 1)
		return REFLECT_MERGED;
	if (!for_us(p, listener))
		return REFLECT_OTHER_HOST;
	if (r.udp_length != r.ip_length || r.udp_length < sizeof(struct udphdr) ||
	    !has_bytes(p, r.udp_offset + r.udp_length))
		return REFLECT_BAD_LENGTH;
	if (r.check == 0 && !r.ip4)
		return REFLECT_NO_CHECKSUM;
	length = r.udp_length - sizeof(struct udphdr);
	if (p->xdp && length > PAYLOAD_MAX)
		return REFLECT_OVERSIZE;

	if (is_ours(r.source_port))
		return REFLECT_OWN_PORT;
	if (!proper(p, &r))
		return REFLECT_BAD_ADDRESS;
	bucket = bucket_of(&r.source, r.ip4);
	if (!bucket)
		return REFLECT_NOT_ALLOWED;
	if (length < SHORTEST_REQUEST)
		return REFLECT_TOO_SHORT;
	if (!take_token(bucket, r.received))
		return REFLECT_RATE_LIMITED;
	if (p->xdp && !complete_checksum(p, &r))
		return REFLECT_BAD_LENGTH;
	return answer(p, &r, length);
}

/* Not inlined, as it is called again for scattered packets. */
static __noinline enum reflect_verdict reflect_skb(struct __sk_buff *skb)
{
	const struct packet p = tc_packet(skb);

	return reflect(&p);
}

static __always_inline void count(enum reflect_verdict v, __u32 ifindex)
{
	struct counter_key key;
	__u64 *n;

	if (v < REFLECT__FOREIGN_MAX && !count_foreign)
		return;
	key.ifindex = ifindex;
	key.verdict = v;
	n = bpf_map_lookup_elem(&counters, &key);
	if (n)
		(*n)++;
}

SEC("tc")
int xtwamp_reflect(struct __sk_buff *skb)
{
	const struct packet p = tc_packet(skb);
	enum reflect_verdict v = (enum reflect_verdict)first_sight(&p);
	__u32 ifindex;

	if (v == REFLECT_UNPARSED) {
		const __u32 most = link_header + sizeof(struct ipv6hdr) + sizeof(struct udphdr);

		v = reflect_skb(skb);
		/* A driver may leave all of a packet in pages beside the skb. */
		if (v == REFLECT_UNPARSED &&
		    !bpf_skb_pull_data(skb, most < skb->len ? most : skb->len))
			v = reflect_skb(skb);
	}
	ifindex = skb->ifindex;
	count(v, ifindex);
	if (v == REFLECT_ANSWERED)
		return bpf_redirect(ifindex, 0);
	/* TC_ACT_UNSPEC leaves the packet to others, and in the end to the socket. */
	return v >= REFLECT__REFUSED_MIN ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

SEC("xdp")
int xtwamp_reflect_xdp(struct xdp_md *xdp)
{
	const struct packet p = xdp_packet(xdp);
	enum reflect_verdict v = reflect(&p);

	count(v, ifindex_of(&p));
	if (v == REFLECT_ANSWERED)
		return XDP_TX;
	return v >= REFLECT__REFUSED_MIN ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
