/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef XTWAMP_WIRE_H
#define XTWAMP_WIRE_H

/* The layouts of RFC 8762 section 4, up to what is read. */
struct probe {
	__be32 seq;
	__be64 time;
} __attribute__((packed, aligned(4)));

struct reply {
	__be32 seq;
	__be64 time; /* T3 */
	__be16 error_estimate;
	__be16 ssid;
	__be64 receive_time; /* T2 */
	__be32 sender_seq;
	__be64 sender_time;
} __attribute__((packed, aligned(4)));

struct reply_tail {
	__be16 sender_error_estimate;
	__be16 mbz;
	__u8 sender_ttl;
} __attribute__((packed));

/* DoubleZero's echo: a probe, and zeros up to 48 bytes. */
struct echo_tail {
	__u32 zero[3]; /* what is left behind the size of a reply */
};

#define REPLY_MIN sizeof(struct reply) /* shortest useful reply */
#define REPLY_WITH_TTL (sizeof(struct reply) + sizeof(struct reply_tail))
#define REPLY_FULL 44 /* from here on the SSID is one, and not padding */
#define ECHO_SIZE (sizeof(struct reply) + sizeof(struct echo_tail))

_Static_assert(sizeof(struct reply) == 36, "sender's time ends at 35");
_Static_assert(REPLY_WITH_TTL == 41, "sender's TTL is byte 40");
_Static_assert(ECHO_SIZE == 48, "DoubleZero's size");

#endif
