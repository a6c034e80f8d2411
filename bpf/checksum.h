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

/* What stands in a UDP header for a sum. RFC 768: 0 would say that there is none. */
static __always_inline __u16 checksum(__u64 sum)
{
	__u16 check = ~fold(sum);

	return check ? check : 0xffff;
}

/*
 * The pseudo header. The 0xffff of a mapped IPv4 address adds nothing in one's
 * complement, so both families are summed alike.
 */
static __always_inline __u16 pseudo_sum(const __be64 a[2], const __be64 b[2], __u32 udp_length)
{
	__u64 sum = bpf_htons(IPPROTO_UDP) + bpf_htons(udp_length);

	sum = add64(sum, a[0]);
	sum = add64(sum, a[1]);
	sum = add64(sum, b[0]);
	sum = add64(sum, b[1]);
	return fold(sum);
}

/* Adds n bytes, a constant, of the packet; false if they cannot be read. */
static __always_inline bool add_words(__u64 *sum, struct __sk_buff *skb, __u32 offset, __u32 n)
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
 * What is added is copied out in pieces of constant size: without CAP_PERFMON
 * no variable may be added to a packet pointer, and one of variable size needs
 * a buffer that has been cleared. The loops are unrolled, see xtwamp.bpf.c.
 */
static __always_inline bool add_skb(struct __sk_buff *skb, __u32 start, __u32 length, __u64 *sum)
{
	__be32 chunk[CHUNK / sizeof(__be32)];
	__be16 pair = 0;

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PAYLOAD_MAX / CHUNK; i++) {
		__s64 more;

		if (length < (i + 1) * CHUNK)
			break;
		if (bpf_skb_load_bytes(skb, start + i * CHUNK, chunk, CHUNK))
			return false;
		more = bpf_csum_diff(NULL, 0, chunk, CHUNK, 0);
		if (more < 0)
			return false;
		*sum += more;
	}
#pragma clang loop unroll(full)
	for (__u32 n = CHUNK / 2; n >= sizeof(__be32); n /= 2)
		if (length & n && !add_words(sum, skb, start + (length & ~(2 * n - 1)), n))
			return false;
	if (length & 2) {
		if (bpf_skb_load_bytes(skb, start + (length & ~3), &pair, 2))
			return false;
		*sum += pair;
	}
	if (length & 1) {
		pair = 0;
		if (bpf_skb_load_bytes(skb, start + (length & ~1), &pair, 1))
			return false;
		*sum += pair;
	}
	return true;
}

/* Adds the n bytes, a constant, ETH_HLEN behind the frame's start, and has it start behind them. */
static __always_inline bool add_piece(struct xdp_md *xdp, __u32 n, __u64 *sum)
{
	const struct packet p = xdp_packet(xdp);
	struct cursor c = cursor_of(&p);
	const __be32 *words;

	if (!take(&c, ETH_HLEN))
		return false;
	words = take(&c, n);
	if (!words)
		return false;
	if (n >= 32) {
		__s64 more = bpf_csum_diff(NULL, 0, (__be32 *)words, n, 0);

		if (more < 0)
			return false;
		*sum += more;
	} else if (n >= sizeof(words[0])) {
#pragma clang loop unroll(full)
		for (__u32 i = 0; i < n / sizeof(words[0]); i++)
			*sum += words[i];
	} else {
		*sum += n == 2 ? *(const __be16 *)words : *(const __u8 *)words;
	}
	return !bpf_xdp_adjust_head(xdp, n);
}

/*
 * Here too pieces are of constant size, and each is read at the same place: a
 * pointer that moves on would be another one after each combination of pieces,
 * and the verifier would follow all of them. So the frame's start moves, and
 * goes back where it was.
 */
static __always_inline bool add_xdp(struct xdp_md *xdp, __u32 start, __u32 length, __u64 *sum)
{
	int there = start - ETH_HLEN;
	int back = -(there + length);

	if (bpf_xdp_adjust_head(xdp, there))
		return false;
	for (__u32 i = 0; i < 2; i++)
		if (length & 1024 && !add_piece(xdp, 512, sum))
			return false;
#pragma clang loop unroll(full)
	for (__u32 n = 512; n; n /= 2)
		if (length & n && !add_piece(xdp, n, sum))
			return false;
	return !bpf_xdp_adjust_head(xdp, back);
}

/* Adds length bytes of the packet, which it has, to a sum. */
static __always_inline bool add_bytes(const struct packet *p, __u32 start, __u32 length, __u64 *sum)
{
	return p->xdp ? add_xdp(p->xdp, start, length, sum) : add_skb(p->skb, start, length, sum);
}

#endif
