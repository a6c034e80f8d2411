/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a matched reply to a sample in its slot and on the ring. */
#ifndef XTWAMP_RECORD_H
#define XTWAMP_RECORD_H

/*
 * Of a reader that looks by itself every now and then: how many bytes of
 * records wake it all the same. 0: of one that sleeps until there is a record.
 */
volatile const __u32 wake_at = 0;

/* Waking a reader costs more than all else that is done to a packet. */
static __always_inline __u64 wakeup(void)
{
	if (!wake_at)
		return 0; /* the kernel wakes a reader that had read everything */
	if (bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) < wake_at)
		return BPF_RB_NO_WAKEUP;
	return BPF_RB_FORCE_WAKEUP;
}

/* What a reply says beyond its first REPLY_MIN bytes, and where it came in. */
struct arrival {
	__u64 time;
	__u32 ifindex;
	__u32 flags;
	__u16 ssid;
	__u8 remote_ttl;
};

/*
 * Whether the UDP checksum is right, given the payload's first bytes and what
 * is behind them. A local peer with checksum offload leaves the sum of the
 * pseudo header in its place (CHECKSUM_PARTIAL); to a corrupt packet that
 * happens once in 65,536 times.
 */
static __always_inline bool checksum_ok(const struct packet *p, const struct path_key *key,
					const struct flow *f, const struct reply *head)
{
	__u16 pseudo = pseudo_sum(key->local, key->remote, f->udp_length);
	const __be32 *words = (const void *)head;
	__u64 sum;

	if (f->check == 0)
		return f->ip4; /* RFC 8200 section 8.1 forbids it on IPv6 */
	if (f->check == pseudo)
		return true;
	sum = (__u64)pseudo + key->local_port + key->remote_port + f->check;
	sum += bpf_htons(f->udp_length);
	for (__u32 i = 0; i < sizeof(*head) / sizeof(words[0]); i++)
		sum += words[i];
	return add_bytes(p, f->udp_offset + sizeof(struct udphdr) + sizeof(*head),
			 f->length - sizeof(*head), &sum) &&
	       fold(sum) == 0xffff;
}

/* Writes all that a reply says but the flags. */
static __always_inline void fill(struct sample *s, const struct reply *r, const struct flow *f,
				 const struct arrival *a)
{
	s->t4 = a->time;
	if (a->flags & SAMPLE_HAS_TIMES) {
		s->t2 = r->receive_time;
		s->t3 = r->time;
		s->error_estimate = r->error_estimate;
	}
	s->reply_seq = bpf_ntohl(r->seq);
	s->ifindex = a->ifindex;
	s->ssid = a->ssid;
	s->length = f->length;
	s->ttl = f->ttl;
	s->remote_ttl = a->remote_ttl;
	s->tos = f->tos;
}

/* Records a reply in its slot and on the ring; a second one only on the ring. */
static __always_inline enum verdict record(struct sample *slot, const struct reply *r,
					   const struct flow *f, const struct arrival *a)
{
	struct sample *copy;

	if (slot->flags & SAMPLE_ANSWERED) {
		copy = bpf_ringbuf_reserve(&events, sizeof(*copy), 0);
		if (!copy)
			return VERDICT_DUPLICATE_RING_FULL;
		*copy = *slot;
		fill(copy, r, f, a);
		copy->flags = a->flags | SAMPLE_DUPLICATE;
		bpf_ringbuf_submit(copy, wakeup());
		return VERDICT_DUPLICATE;
	}
	fill(slot, r, f, a);
	barrier(); /* who finds the flag finds the rest */
	slot->flags = a->flags;
	if (bpf_ringbuf_output(&events, slot, sizeof(*slot), wakeup()))
		return VERDICT_RING_FULL;
	return VERDICT_ANSWERED;
}

#endif
