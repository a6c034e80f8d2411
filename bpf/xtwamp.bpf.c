/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
//go:build ignore

/*
 * xtwamp_egress takes T1 of each probe that leaves, xtwamp_ingress takes T4 of
 * its reply, records both and ends the reply there; so does xtwamp_xdp, where
 * it is asked for, a little earlier. No packet is ever changed,
 * and nothing that is not a probe or the reply to one is ever held up.
 *
 * The same object has to load on every kernel from 5.10 on, with CAP_BPF and
 * CAP_NET_ADMIN alone. This forbids
 *   - atomics that return the old value (5.12): counters are per CPU, and a
 *     slot has no lock. Two copies of one reply on two CPUs at the same instant
 *     may thus both be recorded as the first; user space keeps one of them.
 *   - kfuncs and CO-RE, which need the kernel's BTF.
 *   - what needs CAP_PERFMON: packet pointers in subtractions, or compared with
 *     anything but the packet's end; and code that is only right because an
 *     earlier branch went the right way, since the verifier then also follows
 *     mispredicted branches. A counted loop has no end for it: unroll.
 *   - many stack slots where it must be cheap: without CAP_PERFMON the first
 *     store to each costs a speculation barrier. So foreign traffic leaves
 *     before anything is stored, and samples are written where they stay.
 */

#include "uapi.h"
#include <bpf_helpers.h>
#include <bpf_endian.h>

#include "abi.h"
#include "maps.h"
#include "parse.h"
#include "packet.h"
#include "wire.h"
#include "checksum.h"
#include "record.h"

enum direction { EGRESS, INGRESS };

/*
 * TC_ACT_UNSPEC leaves the packet to whoever else is attached. TC_ACT_SHOT is
 * the one code that ends it alike on tcx and clsact.
 */
static __always_inline int action(enum verdict v)
{
	return v >= VERDICT__ENDED_MIN ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Whether a path uses the port. */
static __always_inline bool is_used(enum side side, __be16 port)
{
	__u16 p = bpf_ntohs(port);

	return ports[side][p / 64] >> p % 64 & 1;
}

/* Reads a UDP header, unless no path uses the ports. What comes in has its time from here on. */
static __always_inline bool read_udp(struct cursor *c, enum direction d, struct path_key *key,
				     struct flow *f, enum verdict *why)
{
	const struct udphdr *udp = take(c, sizeof(*udp));

	*why = VERDICT_UNPARSED;
	if (!udp)
		return false;
	*why = VERDICT_OTHER_PORT;
	if (!is_used(d == EGRESS ? LOCAL : REMOTE, udp->source) ||
	    !is_used(d == EGRESS ? REMOTE : LOCAL, udp->dest))
		return false;
	if (d == INGRESS)
		f->time = bpf_ktime_get_ns();
	key->local_port = d == EGRESS ? udp->source : udp->dest;
	key->remote_port = d == EGRESS ? udp->dest : udp->source;
	key->pad = 0;
	f->udp_length = bpf_ntohs(udp->len);
	f->check = udp->check;
	return true;
}

/*
 * Reads the headers and leaves the cursor at the payload. Each family is read
 * to its end before the two meet again.
 */
static __always_inline bool read_headers(const struct packet *p, struct cursor *c, enum direction d,
					 struct path_key *key, struct flow *f, enum verdict *why)
{
	__be64 *source = d == EGRESS ? key->local : key->remote;
	__be64 *destination = d == EGRESS ? key->remote : key->local;
	__be16 protocol;

	*why = VERDICT_UNPARSED;
	if (!read_protocol(p, c, &protocol))
		return false;
	if (protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = parse_ip4(c, why);

		if (!ip || !read_udp(c, d, key, f, why))
			return false;
		map_address(source, ip->saddr);
		map_address(destination, ip->daddr);
		f->ip4 = true;
		f->ttl = ip->ttl;
		f->tos = ip->tos;
		f->udp_offset = link_length(p) + sizeof(*ip);
		f->ip_length = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		return true;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = parse_ip6(c, why);

		if (!ip || !read_udp(c, d, key, f, why))
			return false;
		source[0] = ip->saddr[0];
		source[1] = ip->saddr[1];
		destination[0] = ip->daddr[0];
		destination[1] = ip->daddr[1];
		f->ip4 = false;
		f->ttl = ip->hop_limit;
		f->tos = bpf_ntohl(ip->version_class_flow) >> 20;
		f->udp_offset = link_length(p) + sizeof(*ip);
		f->ip_length = bpf_ntohs(ip->payload_len);
		return true;
	}
	*why = VERDICT_NOT_IP;
	return false;
}

/*
 * Finds the path that a packet belongs to and leaves the cursor at the payload;
 * or returns NULL and says what the packet is instead.
 */
static __always_inline const struct probe_path *find(const struct packet *p, struct cursor *c,
						     enum direction d, struct path_key *key,
						     struct flow *f, enum verdict *why)
{
	const struct probe_path *path;

	if (!read_headers(p, c, d, key, f, why))
		return NULL;
	path = bpf_map_lookup_elem(&paths, key);
	*why = VERDICT_OTHER_PATH;
	if (!path)
		return NULL;
	/* XDP sees first what is for a device above this one, tags taken off. */
	if (p->xdp && path->device != p->xdp->ingress_ifindex)
		return NULL;
	*why = VERDICT_TAGGED;
	if (p->skb && p->skb->vlan_present)
		return NULL;
	*why = VERDICT_MERGED;
	if (p->skb && p->skb->gso_segs > 1)
		return NULL;
	*why = VERDICT_BAD_LENGTH;
	if (f->udp_length != f->ip_length || f->udp_length < sizeof(struct udphdr) ||
	    !has_bytes(p, f->udp_offset + f->udp_length))
		return NULL;
	f->length = f->udp_length - sizeof(struct udphdr);
	return path;
}

/* Not inlined, as this and its sibling are called again for scattered packets. */
static __noinline enum verdict observe_egress(struct __sk_buff *skb)
{
	const struct packet p = tc_packet(skb);
	struct cursor c = cursor_of(&p);
	const struct probe_path *path;
	const struct probe *probe;
	struct path_key key;
	struct sample *slot;
	enum verdict why;
	struct flow f;
	__u32 seq;

	path = find(&p, &c, EGRESS, &key, &f, &why);
	if (!path)
		return why;
	if (f.length < sizeof(*probe))
		return VERDICT_BAD_FORMAT;
	probe = take(&c, sizeof(*probe));
	if (!probe)
		return VERDICT_SCATTERED;

	seq = bpf_ntohl(probe->seq);
	slot = slot_of(path, seq);
	if (!slot)
		return VERDICT_NO_SLOT;
	if (slot->flags & SAMPLE_SENT && slot->seq == seq && slot->wire_t1 == probe->time)
		return VERDICT_PROBE_SEEN;

	__builtin_memset(slot, 0, sizeof(*slot));
	slot->path = path->id;
	slot->seq = seq;
	slot->wire_t1 = probe->time;
	slot->t1 = bpf_ktime_get_ns();
	barrier(); /* who finds the flag finds the rest */
	slot->flags = SAMPLE_SENT;
	return VERDICT_PROBE_SENT;
}

/* Behind the timestamp of DoubleZero's probe there is nothing but zeros. */
static __always_inline bool zeros(const struct reply *r, const struct echo_tail *tail)
{
	const __u32 *words = (const void *)r;
	__u32 any = tail->zero[0] | tail->zero[1] | tail->zero[2];

	for (int i = sizeof(struct probe) / 4; i < REPLY_MIN / 4; i++)
		any |= words[i];
	return !any;
}

static __always_inline enum verdict observe_reply(const struct packet *p)
{
	struct arrival a = { .flags = SAMPLE_SENT | SAMPLE_ANSWERED };
	struct cursor c = cursor_of(p);
	const struct probe_path *path;
	const struct reply *r;
	struct path_key key;
	struct reply copy;
	struct sample *slot;
	__be64 sender_time;
	enum verdict why;
	__u32 sender_seq;
	struct flow f;

	path = find(p, &c, INGRESS, &key, &f, &why);
	if (!path)
		return why;
	a.time = f.time;
	a.ifindex = ifindex_of(p);
	if (p->xdp)
		a.flags |= SAMPLE_XDP;

	if (f.length < REPLY_MIN)
		return VERDICT_BAD_FORMAT;
	if (p->xdp) {
		c = udp_of(p, f.ip4);
		take(&c, sizeof(struct udphdr));
	}
	r = take(&c, REPLY_MIN);
	if (!r)
		return VERDICT_SCATTERED;

	if (path->profile == PROFILE_DOUBLEZERO) {
		const struct echo_tail *tail;

		if (f.length != ECHO_SIZE)
			return VERDICT_BAD_FORMAT;
		tail = take(&c, sizeof(*tail));
		if (!tail)
			return VERDICT_SCATTERED;
		if (!zeros(r, tail))
			return VERDICT_BAD_FORMAT;
		sender_seq = bpf_ntohl(r->seq);
		sender_time = r->time;
	} else {
		sender_seq = bpf_ntohl(r->sender_seq);
		sender_time = r->sender_time;
		a.flags |= SAMPLE_HAS_TIMES;
		if (f.length >= REPLY_WITH_TTL) {
			const struct reply_tail *tail = take(&c, sizeof(*tail));

			if (!tail)
				return VERDICT_SCATTERED;
			a.remote_ttl = tail->sender_ttl;
			a.flags |= SAMPLE_HAS_TTL;
		}
		if (path->profile == PROFILE_STAMP && f.length >= REPLY_FULL)
			a.ssid = bpf_ntohs(r->ssid);
	}

	slot = slot_of(path, sender_seq);
	if (!slot)
		return VERDICT_NO_SLOT;
	if (!(slot->flags & SAMPLE_SENT) || slot->seq != sender_seq || slot->wire_t1 != sender_time)
		return VERDICT_UNMATCHED;
	if (a.ssid && a.ssid != path->ssid) /* 0: the far side does not know RFC 8972 */
		return VERDICT_WRONG_SSID;
	if (path->interface && path->interface != a.ifindex)
		return VERDICT_WRONG_INTERFACE;
	if (f.length > PAYLOAD_MAX)
		return VERDICT_OVERSIZE;

	if (p->xdp) {
		copy = *r; /* the pointer does not last, see add_xdp */
		r = &copy;
	}
	if (!checksum_ok(p, &key, &f, r))
		return VERDICT_BAD_CHECKSUM;
	return record(slot, r, &f, &a);
}

static __noinline enum verdict observe_ingress(struct __sk_buff *skb)
{
	const struct packet p = tc_packet(skb);

	return observe_reply(&p);
}

/*
 * Brings into reach what is read of a packet: a driver may leave all of it in
 * pages beside the skb. False if that was not it.
 */
static __always_inline bool gather(struct __sk_buff *skb, enum verdict v)
{
	const __u32 most = link_header + sizeof(struct ipv6hdr) + sizeof(struct udphdr) + ECHO_SIZE;

	if (v != VERDICT_UNPARSED && v != VERDICT_SCATTERED)
		return false;
	return !bpf_skb_pull_data(skb, most < skb->len ? most : skb->len);
}

SEC("tc")
int xtwamp_egress(struct __sk_buff *skb)
{
	const struct packet p = tc_packet(skb);
	enum verdict v = first_sight(&p);

	if (v == VERDICT_UNPARSED) {
		v = observe_egress(skb);
		if (gather(skb, v))
			v = observe_egress(skb);
	}
	count(v);
	return action(v);
}

SEC("tc")
int xtwamp_ingress(struct __sk_buff *skb)
{
	const struct packet p = tc_packet(skb);
	enum verdict v = first_sight(&p);

	if (v == VERDICT_UNPARSED) {
		v = observe_ingress(skb);
		if (gather(skb, v))
			v = observe_ingress(skb);
	}
	count(v);
	return action(v);
}

/*
 * In front of xtwamp_ingress, which is attached too and counts what passes
 * here: a packet has one verdict. T1 it cannot take, since XDP never sees what
 * this host sends.
 */
SEC("xdp")
int xtwamp_xdp(struct xdp_md *xdp)
{
	const struct packet p = xdp_packet(xdp);
	enum verdict v = observe_reply(&p);
	bool ended = v >= VERDICT__ENDED_MIN;

	if (ended || count_foreign)
		count(v);
	return ended ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
