/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* UDP's checksum (RFC 768, RFC 8200 section 8.1). */
#ifndef XTWAMP_CHECKSUM_H
#define XTWAMP_CHECKSUM_H

/* Longest payload that is verified here. */
#define PAYLOAD_MAX 1500

#define CHUNK 128 /* bytes per call of bpf_csum_diff: a power of two, at most 512 */

/* 16-bit one's complement sum of what a 64-bit one is. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return sum;
}

static __always_inline __u64 add64(__u64 sum, __u64 v)
{
	return sum + (v >> 32) + (v & 0xffffffff);
}

/*
 * The pseudo header. The 0xffff of a mapped IPv4 address adds nothing in one's
 * complement, so both families are summed alike.
 */
static __always_inline __u16 pseudo_sum(const struct path_key *key, const struct flow *f)
{
	__u64 sum = bpf_htons(IPPROTO_UDP) + bpf_htons(f->length + sizeof(struct udphdr));

	sum = add64(sum, key->local[0]);
	sum = add64(sum, key->local[1]);
	sum = add64(sum, key->remote[0]);
	sum = add64(sum, key->remote[1]);
	return fold(sum);
}

/* Adds n bytes, a constant, of the packet; false if they cannot be read. */
static __always_inline bool add_bytes(__u64 *sum, struct __sk_buff *skb, __u32 offset, __u32 n)
{
	__be32 words[CHUNK / 2 / sizeof(__be32)];

	if (bpf_skb_load_bytes(skb, offset, words, n))
		return false;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < n / sizeof(words[0]); i++)
		*sum += words[i];
	return true;
}

/*
 * Whether the UDP checksum is right, given the payload's first bytes. A local
 * peer with checksum offload leaves the sum of the pseudo header in its place
 * (CHECKSUM_PARTIAL); to a corrupt packet that happens once in 65,536 times.
 *
 * The rest is copied out in pieces of constant size: without CAP_PERFMON no
 * variable may be added to a packet pointer, and one of variable size needs a
 * buffer that has been cleared. The loops are unrolled, see xtwamp.bpf.c.
 */
static __always_inline bool checksum_ok(struct __sk_buff *skb, const struct path_key *key,
					const struct flow *f, const struct reply *head)
{
	const __be32 *words = (const void *)head;
	__u32 start = f->udp_offset + sizeof(struct udphdr) + sizeof(*head);
	__u32 rest = f->length - sizeof(*head);
	__u16 pseudo = pseudo_sum(key, f);
	__be32 chunk[CHUNK / sizeof(__be32)];
	__be16 pair = 0;
	__u64 sum;

	if (f->check == 0)
		return f->ip4; /* RFC 8200 section 8.1 forbids it on IPv6 */
	if (f->check == pseudo)
		return true;

	sum = (__u64)pseudo + key->local_port + key->remote_port + f->check;
	sum += bpf_htons(f->length + sizeof(struct udphdr));
	for (__u32 i = 0; i < sizeof(*head) / sizeof(words[0]); i++)
		sum += words[i];

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PAYLOAD_MAX / CHUNK; i++) {
		__s64 more;

		if (rest < (i + 1) * CHUNK)
			break;
		if (bpf_skb_load_bytes(skb, start + i * CHUNK, chunk, CHUNK))
			return false;
		more = bpf_csum_diff(NULL, 0, chunk, CHUNK, 0);
		if (more < 0)
			return false;
		sum += more;
	}
#pragma clang loop unroll(full)
	for (__u32 n = CHUNK / 2; n >= sizeof(__be32); n /= 2)
		if (rest & n && !add_bytes(&sum, skb, start + (rest & ~(2 * n - 1)), n))
			return false;
	if (rest & 2) {
		if (bpf_skb_load_bytes(skb, start + (rest & ~3), &pair, 2))
			return false;
		sum += pair;
	}
	if (rest & 1) {
		pair = 0;
		if (bpf_skb_load_bytes(skb, start + (rest & ~1), &pair, 1))
			return false;
		sum += pair;
	}
	return fold(sum) == 0xffff;
}

#endif
