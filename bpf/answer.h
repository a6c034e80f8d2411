/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a request that gets an answer to the answer, in either hook. */
#ifndef XTWAMP_ANSWER_H
#define XTWAMP_ANSWER_H

/* CLOCK_REALTIME - CLOCK_MONOTONIC in ns, and how good that is. */
__u64 clock_offset;
__be16 error_estimate;

/* Where the reflectors listen that this host asks; device is 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the loader */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct listen_key);
	__type(value, __u8);
} reflectors SEC(".maps");

/* Hashes of the last echoes, where a hash says that they are; the latest first. */
struct echo_set {
	__u64 hashes[ECHO_SET_SIZE];
};

/* A packet comes back before so many others have been answered. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ECHO_SETS);
	__type(key, __u32);
	__type(value, struct echo_set);
} echoes SEC(".maps");

/* Random, so that nobody can tell which echoes share a set. */
volatile const __u64 echo_seed = 0;

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
		any |= d->base.words[i];
	return !any;
}

/*
 * Whether it is the reply of another reflector, as twamp.Classify tells it: T2 is
 * there, and T3 not long after it.
 */
static __always_inline bool is_reply(const struct datagram *d)
{
	const __u32 *words = d->base.words;
	__u64 sent = bpf_be64_to_cpu((__u64)words[2] << 32 | words[1]);
	__u64 received = bpf_be64_to_cpu((__u64)words[5] << 32 | words[4]);

	return received && sent - received < LONGEST_DWELL;
}

/* Whether a reflector sent it that this host asks. */
static __always_inline bool from_reflector(const struct request *r)
{
	struct listen_key key = { .address = r->source, .port = r->source_port };

	return bpf_map_lookup_elem(&reflectors, &key);
}

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15; /* 2^64 / golden ratio */
	return hash ^ hash >> 32;
}

/* What tells a DoubleZero probe from its sender's others. */
struct probe_id {
	__u32 words[3]; /* sequence number, time */
};

/*
 * Whether the same has come from there before, and notes that it has now. No
 * probe is sent twice: it is the answer of another reflector to our answer, or
 * the network's copy.
 */
static __always_inline bool seen_before(const struct packet *p, const struct request *r)
{
	const __u32 offset = r->udp_offset + sizeof(struct udphdr);
	struct echo_set *set;
	struct probe_id id;
	__u64 hash;
	__u32 key;

	if (p->skb) {
		if (bpf_skb_load_bytes(p->skb, offset, &id, sizeof(id)))
			return false;
	} else {
		struct cursor c = udp_of(p, r->ip4);
		const struct probe_id *in_place;

		if (!take(&c, sizeof(struct udphdr)))
			return false;
		in_place = take(&c, sizeof(*in_place));
		if (!in_place)
			return false;
		id = *in_place;
	}
	hash = mix(echo_seed, (__u64)id.words[1] << 32 | id.words[2]);
	hash = mix(hash,
		   (__u64)id.words[0] << 32 | (__u32)r->source_port << 16 | r->destination_port);
	hash = mix(hash, r->source.words[0]);
	hash = mix(hash, r->source.words[1]);
	hash = mix(hash, r->destination.words[0]);
	hash = mix(hash, r->destination.words[1]);
	key = hash % ECHO_SETS;
	set = bpf_map_lookup_elem(&echoes, &key);
	if (!set)
		return false;
	/* Two CPUs that write at once may forget one. */
	for (int i = 0; i < ECHO_SET_SIZE; i++)
		if (set->hashes[i] == hash)
			return true;
	for (int i = ECHO_SET_SIZE - 1; i > 0; i--)
		set->hashes[i] = set->hashes[i - 1];
	set->hashes[0] = hash;
	return false;
}

/* Each turns a header round for the answer. */

static __always_inline void turn_link(struct ethhdr *eth)
{
	struct ethhdr was = *eth;

	__builtin_memcpy(eth->h_dest, was.h_source, sizeof(eth->h_dest));
	__builtin_memcpy(eth->h_source, was.h_dest, sizeof(eth->h_source));
}

static __always_inline void turn_ip4(struct iphdr *ip)
{
	__be32 address = ip->saddr;
	__u32 sum;

	/* RFC 1624: a header that came in damaged goes out damaged. */
	sum = (__u16)~ip->check + (__u16) ~(ip->version_ihl | ip->tos << 8) +
	      (__u16) ~(ip->ttl | ip->protocol << 8);
	ip->tos &= DSCP_BITS;
	ip->ttl = TTL_MAX;
	sum += (__u16)(ip->version_ihl | ip->tos << 8) + (__u16)(ip->ttl | ip->protocol << 8);
	sum = (sum >> 16) + (sum & 0xffff);
	sum += sum >> 16;
	ip->check = ~sum;
	ip->saddr = ip->daddr;
	ip->daddr = address;
}

static __always_inline void turn_ip6(struct ipv6hdr *ip, const struct request *r)
{
	ip->version_class_flow &= bpf_htonl(~IP6_ECN_BITS);
	ip->hop_limit = TTL_MAX;
	ip->saddr[0] = r->destination.words[0];
	ip->saddr[1] = r->destination.words[1];
	ip->daddr[0] = r->source.words[0];
	ip->daddr[1] = r->source.words[1];
}

/*
 * Sends the datagram back with the addresses of each layer swapped. The UDP
 * checksum stays right by that; what else changes is in diff. From the first
 * change on there is no way back to the socket.
 */
static __always_inline enum reflect_verdict send_skb(struct __sk_buff *skb, struct request *r,
						     struct datagram *d, __u32 diff)
{
	if (bpf_skb_store_bytes(skb, r->udp_offset, d, sizeof(d->base), 0))
		return REFLECT_NOT_WRITABLE;
	/* Leaves a checksum alone that the sender's offload has not filled in. */
	if (diff &&
	    bpf_l4_csum_replace(skb, r->udp_offset + UDP_CHECK, 0, diff, BPF_F_MARK_MANGLED_0))
		return REFLECT_SEND_FAILED;
	if (r->ip4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, link_header, &ip, sizeof(ip)))
			return REFLECT_SEND_FAILED;
		turn_ip4(&ip);
		if (bpf_skb_store_bytes(skb, link_header, &ip, sizeof(ip), 0))
			return REFLECT_SEND_FAILED;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, link_header, &ip, sizeof(ip)))
			return REFLECT_SEND_FAILED;
		turn_ip6(&ip, r);
		/* No checksum in the header makes up for what changes in a full sum. */
		if (bpf_skb_store_bytes(skb, link_header, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			return REFLECT_SEND_FAILED;
	}
	if (link_header) {
		struct ethhdr eth;

		if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
			return REFLECT_SEND_FAILED;
		turn_link(&eth);
		if (bpf_skb_store_bytes(skb, 0, &eth, 2 * sizeof(eth.h_dest), 0))
			return REFLECT_SEND_FAILED;
	}
	return REFLECT_ANSWERED;
}

/* The same in place. Nothing is changed before all of it is known to be there. */
static __always_inline enum reflect_verdict send_xdp(const struct packet *p, struct request *r,
						     struct datagram *d, __u32 diff)
{
	struct cursor c = udp_of(p, r->ip4);
	struct base *base = (void *)take(&c, sizeof(*base));
	struct ethhdr *eth;

	if (!base)
		return REFLECT_BAD_LENGTH;
	c = cursor_of(p);
	eth = (void *)take(&c, sizeof(*eth));
	if (!eth)
		return REFLECT_BAD_LENGTH;
	if (r->check)
		d->base.udp.check = checksum((__u64)(__u16)~r->check + diff);
	if (r->ip4) {
		struct iphdr *ip = (void *)take(&c, sizeof(*ip));

		if (!ip)
			return REFLECT_BAD_LENGTH;
		turn_ip4(ip);
	} else {
		struct ipv6hdr *ip = (void *)take(&c, sizeof(*ip));

		if (!ip)
			return REFLECT_BAD_LENGTH;
		turn_ip6(ip, r);
	}
	turn_link(eth);
	*base = d->base;
	return REFLECT_ANSWERED;
}

static __always_inline enum reflect_verdict send_back(const struct packet *p, struct request *r,
						      struct datagram *d, __u32 diff)
{
	__be16 source = d->base.udp.source;

	d->base.udp.source = d->base.udp.dest;
	d->base.udp.dest = source;
	return p->xdp ? send_xdp(p, r, d, diff) : send_skb(p->skb, r, d, diff);
}

/* Reads what there is of a datagram. */
static __always_inline bool read_datagram(const struct packet *p, const struct request *r,
					  __u32 length, struct datagram *d)
{
	const struct datagram *whole;
	const struct base *base;
	struct cursor c;

	d->tail = 0;
	if (length < BASE_SIZE + sizeof(d->tail)) {
		if (p->skb)
			return !bpf_skb_load_bytes(p->skb, r->udp_offset, d, sizeof(d->base));
		c = udp_of(p, r->ip4);
		base = take(&c, sizeof(*base));
		if (base)
			d->base = *base;
		return base;
	}
	if (p->skb)
		return !bpf_skb_load_bytes(p->skb, r->udp_offset, d, sizeof(*d));
	c = udp_of(p, r->ip4);
	whole = take(&c, sizeof(*whole));
	if (whole)
		*d = *whole;
	return whole;
}

/* Sets the first byte of the tail, which is there. False if that cannot be. */
static __always_inline bool write_tail(const struct packet *p, const struct request *r, __u8 first)
{
	struct cursor c;
	struct datagram *d;

	if (p->skb)
		return !bpf_skb_store_bytes(p->skb, r->udp_offset + sizeof(struct base), &first, 1,
					    0);
	c = udp_of(p, r->ip4);
	d = (void *)take(&c, sizeof(*d));
	if (!d)
		return false;
	*(__u8 *)&d->tail = first;
	return true;
}

/* The answer, by the table of twamp.Classify and twamp.AppendReply. */
static __always_inline enum reflect_verdict answer(const struct packet *p, struct request *r,
						   __u32 length)
{
	__be64 received, sent;
	struct datagram d;
	__u32 request[4];
	__u64 diff = 0;
	__u32 *words;
	bool echoed;

	if (length < BASE_SIZE)
		return REFLECT_SHORT;
	/* Asked before there is a datagram on the stack, which needs CAP_PERFMON otherwise. */
	echoed = length == ECHO_SIZE && (from_reflector(r) || seen_before(p, r));
	if (!read_datagram(p, r, length, &d))
		return REFLECT_BAD_LENGTH;
	words = d.base.words;
	if (length == ECHO_SIZE && is_echo(&d))
		return echoed ? REFLECT_IS_REPLY : send_back(p, r, &d, 0);
	if (is_reply(&d))
		return REFLECT_IS_REPLY;
	if (d.tail) {
		__be32 flags = d.tail & TLV_FLAGS;
		__be32 cleared = d.tail & ~TLV_FLAGS;

		/* Exactly one Extra Padding TLV (RFC 8972 section 4.1)? */
		if ((cleared & ~TLV_RESERVED) !=
		    (TLV_EXTRA_PADDING | (__be32)bpf_htons(length - ECHO_SIZE) << 16))
			return REFLECT_TLVS;
		if (flags) {
			if (!write_tail(p, r, cleared))
				return REFLECT_NOT_WRITABLE;
			diff = (__u64)cleared + (__u32)~d.tail;
		}
	}

	for (int i = 0; i < BASE_SIZE / 4; i++)
		diff += (__u32)~words[i];
	request[0] = words[0];
	request[1] = words[1];
	request[2] = words[2];
	request[3] = words[3];
	received = ntp(r->received);
	sent = ntp(bpf_ktime_get_ns());

	/* RFC 8762 section 4.3.1, four bytes at a time, little-endian; word 0 stays. */
	words[1] = sent;
	words[2] = sent >> 32;
	words[3] = (request[3] & 0xffff0000) | error_estimate; /* keeps RFC 8972's SSID */
	words[4] = received;
	words[5] = received >> 32;
	words[6] = request[0];
	words[7] = request[1];
	words[8] = request[2];
	words[9] = request[3] & 0xffff;
	words[10] = r->ttl;
	for (int i = 0; i < BASE_SIZE / 4; i++)
		diff += words[i];
	diff = (diff >> 32) + (diff & 0xffffffff);
	diff += diff >> 32;
	return send_back(p, r, &d, diff);
}

#endif
