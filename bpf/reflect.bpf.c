/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
//go:build ignore

/*
 * xtwamp_reflect answers test packets where they come in, at tc ingress, and
 * sends the answer out of the same interface. Whatever it does not answer or
 * refuse goes on to the socket behind it, unchanged: our socket reflector,
 * whose answers are the same. It is an object of its own, since a reflector
 * has no use for the maps of the measuring side, nor that for these.
 *
 * What xtwamp.bpf.c says about kernels and CAP_PERFMON holds here too. Packets
 * are written by helpers only: direct writes would make the kernel unshare
 * every cloned packet that passes, also those that are not ours.
 */

#include "uapi.h"
#include <bpf_helpers.h>
#include <bpf_endian.h>

#include "abi.h"
#include "parse.h"
#include "reflect.h"

/* Bytes in front of the IP header: ETH_HLEN, or 0 on devices without such. */
volatile const __u32 link_header = ETH_HLEN;

/* Counts foreign traffic by verdict too. Packet tests want to see every exit. */
volatile const bool count_foreign = false;

/* Shortest time between two requests of one source, in ns: 1 s / rate limit. */
volatile const __u64 request_interval = 0;

/* A bit for each port that our sockets are bound to: all other traffic is told by it. */
__u64 ports[65536 / 64];

/* CLOCK_REALTIME - CLOCK_MONOTONIC in ns, and how good that is. */
__u64 clock_offset;
__be16 error_estimate;

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
	__type(value, __u8);
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

/* A request, its headers read. */
struct request {
	__u64 received; /* CLOCK_MONOTONIC */
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u32 udp_offset;
	__u32 udp_length;
	__u32 ip_length; /* of what IP carries */
	__u16 check;
	__u8 ttl;
	bool ip4;
};

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

static __always_inline bool read_headers(struct __sk_buff *skb, struct request *r,
					 enum verdict *why)
{
	struct cursor c = cursor_of(skb);
	__be16 protocol;

	if (link_header) {
		const struct ethhdr *eth = take(&c, sizeof(*eth));

		*why = VERDICT_UNPARSED;
		if (!eth)
			return false;
		protocol = eth->h_proto;
	} else {
		protocol = skb->protocol;
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = parse_ip4(&c, why);

		if (!ip || !read_udp(&c, r, why))
			return false;
		map_address(r->source.words, ip->saddr);
		map_address(r->destination.words, ip->daddr);
		r->ip4 = true;
		r->ttl = ip->ttl;
		r->udp_offset = link_header + sizeof(*ip);
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
		r->udp_offset = link_header + sizeof(*ip);
		r->ip_length = bpf_ntohs(ip->payload_len);
		return true;
	}
	*why = VERDICT_NOT_IP;
	return false;
}

/* Whether one of our sockets listens there. */
static __always_inline bool is_listener(const struct address *a, __be16 port)
{
	struct listen_key key = { .address = *a, .port = port };

	return bpf_map_lookup_elem(&listeners, &key);
}

/* Whether an answer may go to where the request says it came from. */
static __always_inline bool proper(const struct request *r, __u32 ifindex)
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
	if (ifindex == LOOPBACK_IFINDEX)
		return true;
	/* What we send comes in by loopback alone: this was forged. */
	return !loopback && !is_listener(&r->source, r->destination_port);
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

/* NTP time as twamp.FromUnix has it: a fraction is rounded up. */
static __always_inline __be64 ntp(__u64 monotonic)
{
	__u64 ns = monotonic + clock_offset;
	__u64 fraction = (((ns % SECOND) << 32) + SECOND - 1) / SECOND;

	return bpf_cpu_to_be64((ns / SECOND + NTP_ORIGIN) << 32 | fraction);
}

static __always_inline bool is_echo(const struct datagram *d)
{
	__u32 any = d->tail;

	for (int i = 3; i < BASE_SIZE / 4; i++)
		any |= d->words[i];
	return !any;
}

/*
 * Sends the datagram back with the addresses of each layer swapped. The UDP
 * checksum stays right by that; what else changes is in diff. From the first
 * change on there is no way back to the socket.
 */
static __always_inline enum reflect_verdict send_back(struct __sk_buff *skb, struct request *r,
						      struct datagram *d, __u32 diff)
{
	__be16 source = d->udp.source;

	d->udp.source = d->udp.dest;
	d->udp.dest = source;
	if (bpf_skb_store_bytes(skb, r->udp_offset, d, sizeof(d->udp) + BASE_SIZE, 0))
		return REFLECT_NOT_WRITABLE;
	/* Leaves a checksum alone that the sender's offload has not filled in. */
	if (diff &&
	    bpf_l4_csum_replace(skb, r->udp_offset + UDP_CHECK, 0, diff, BPF_F_MARK_MANGLED_0))
		return REFLECT_SEND_FAILED;
	if (r->ip4) {
		struct iphdr ip;
		__be32 address;
		__u32 sum;

		if (bpf_skb_load_bytes(skb, link_header, &ip, sizeof(ip)))
			return REFLECT_SEND_FAILED;
		/* RFC 1624: a header that came in damaged goes out damaged. */
		sum = (__u16)~ip.check + (__u16) ~(ip.version_ihl | ip.tos << 8) +
		      (__u16) ~(ip.ttl | ip.protocol << 8);
		ip.tos &= DSCP_BITS;
		ip.ttl = TTL_MAX;
		sum += (__u16)(ip.version_ihl | ip.tos << 8) + (__u16)(ip.ttl | ip.protocol << 8);
		sum = (sum >> 16) + (sum & 0xffff);
		sum += sum >> 16;
		ip.check = ~sum;
		address = ip.saddr;
		ip.saddr = ip.daddr;
		ip.daddr = address;
		if (bpf_skb_store_bytes(skb, link_header, &ip, sizeof(ip), 0))
			return REFLECT_SEND_FAILED;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, link_header, &ip, sizeof(ip)))
			return REFLECT_SEND_FAILED;
		ip.version_class_flow &= bpf_htonl(~IP6_ECN_BITS);
		ip.hop_limit = TTL_MAX;
		ip.saddr[0] = r->destination.words[0];
		ip.saddr[1] = r->destination.words[1];
		ip.daddr[0] = r->source.words[0];
		ip.daddr[1] = r->source.words[1];
		/* No checksum in the header makes up for what changes in a full sum. */
		if (bpf_skb_store_bytes(skb, link_header, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			return REFLECT_SEND_FAILED;
	}
	if (link_header) {
		struct ethhdr eth, back;

		if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
			return REFLECT_SEND_FAILED;
		__builtin_memcpy(back.h_dest, eth.h_source, sizeof(back.h_dest));
		__builtin_memcpy(back.h_source, eth.h_dest, sizeof(back.h_source));
		if (bpf_skb_store_bytes(skb, 0, &back, 2 * sizeof(back.h_dest), 0))
			return REFLECT_SEND_FAILED;
	}
	return REFLECT_ANSWERED;
}

/* The answer, by the table of twamp.Classify and twamp.AppendReply. */
static __always_inline enum reflect_verdict answer(struct __sk_buff *skb, struct request *r,
						   __u32 length)
{
	__be64 received, sent;
	struct datagram d;
	__u32 request[4];
	__u64 diff = 0;

	if (length < BASE_SIZE)
		return REFLECT_SHORT;
	d.tail = 0;
	if (length < BASE_SIZE + sizeof(d.tail)) {
		if (bpf_skb_load_bytes(skb, r->udp_offset, &d, sizeof(d.udp) + BASE_SIZE))
			return REFLECT_BAD_LENGTH;
	} else {
		if (bpf_skb_load_bytes(skb, r->udp_offset, &d, sizeof(d)))
			return REFLECT_BAD_LENGTH;
		if (length == ECHO_SIZE && is_echo(&d))
			return send_back(skb, r, &d, 0);
	}
	if (d.tail) {
		__be32 flags = d.tail & TLV_FLAGS;
		__be32 cleared = d.tail & ~TLV_FLAGS;
		__u8 first = cleared;

		/* Exactly one Extra Padding TLV (RFC 8972 section 4.1)? */
		if ((cleared & ~TLV_RESERVED) !=
		    (TLV_EXTRA_PADDING | (__be32)bpf_htons(length - ECHO_SIZE) << 16))
			return REFLECT_TLVS;
		if (flags) {
			if (bpf_skb_store_bytes(skb, r->udp_offset + sizeof(d.udp) + BASE_SIZE,
						&first, 1, 0))
				return REFLECT_NOT_WRITABLE;
			diff = (__u64)cleared + (__u32)~d.tail;
		}
	}

	for (int i = 0; i < BASE_SIZE / 4; i++)
		diff += (__u32)~d.words[i];
	request[0] = d.words[0];
	request[1] = d.words[1];
	request[2] = d.words[2];
	request[3] = d.words[3];
	received = ntp(r->received);
	sent = ntp(bpf_ktime_get_ns());

	/* RFC 8762 section 4.3.1, four bytes at a time, little-endian; word 0 stays. */
	d.words[1] = sent;
	d.words[2] = sent >> 32;
	d.words[3] = (request[3] & 0xffff0000) | error_estimate; /* keeps RFC 8972's SSID */
	d.words[4] = received;
	d.words[5] = received >> 32;
	d.words[6] = request[0];
	d.words[7] = request[1];
	d.words[8] = request[2];
	d.words[9] = request[3] & 0xffff;
	d.words[10] = r->ttl;
	for (int i = 0; i < BASE_SIZE / 4; i++)
		diff += d.words[i];
	diff = (diff >> 32) + (diff & 0xffffffff);
	diff += diff >> 32;
	return send_back(skb, r, &d, diff);
}

static __noinline enum reflect_verdict reflect(struct __sk_buff *skb)
{
	struct bucket *bucket;
	enum verdict why;
	struct request r;
	__u32 length;

	if (!read_headers(skb, &r, &why))
		return (enum reflect_verdict)why;
	if (!is_listener(&r.destination, r.destination_port))
		return REFLECT_OTHER_ADDRESS;
	if (r.received > good_until)
		return REFLECT_STALE;
	if (skb->vlan_present)
		return REFLECT_TAGGED;
	if (skb->gso_segs > 1)
		return REFLECT_MERGED;
	if (skb->pkt_type != PACKET_HOST)
		return REFLECT_OTHER_HOST;
	if (r.udp_length != r.ip_length || r.udp_length < sizeof(struct udphdr) ||
	    r.udp_offset + r.udp_length > skb->len)
		return REFLECT_BAD_LENGTH;
	if (r.check == 0 && !r.ip4)
		return REFLECT_NO_CHECKSUM;
	length = r.udp_length - sizeof(struct udphdr);

	if (is_ours(r.source_port))
		return REFLECT_OWN_PORT;
	if (!proper(&r, skb->ifindex))
		return REFLECT_BAD_ADDRESS;
	bucket = bucket_of(&r.source, r.ip4);
	if (!bucket)
		return REFLECT_NOT_ALLOWED;
	if (length < SHORTEST_REQUEST)
		return REFLECT_TOO_SHORT;
	if (!take_token(bucket, r.received))
		return REFLECT_RATE_LIMITED;
	return answer(skb, &r, length);
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
	const __u32 most = link_header + sizeof(struct ipv6hdr) + sizeof(struct udphdr);
	const __u32 ifindex = skb->ifindex;
	enum reflect_verdict v = reflect(skb);

	/* A driver may leave all of a packet in pages beside the skb. */
	if (v == REFLECT_UNPARSED && !bpf_skb_pull_data(skb, most < skb->len ? most : skb->len))
		v = reflect(skb);
	count(v, ifindex);
	if (v == REFLECT_ANSWERED)
		return bpf_redirect(ifindex, 0);
	/* TC_ACT_UNSPEC leaves the packet to others, and in the end to the socket. */
	return v >= REFLECT__REFUSED_MIN ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
