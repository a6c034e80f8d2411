/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the reflector reads and writes, and the numbers in it. */
#ifndef XTWAMP_REFLECT_H
#define XTWAMP_REFLECT_H

#define SECOND 1000000000ULL	 /* ns */
#define NTP_ORIGIN 2208988800ULL /* seconds from 1900, where NTP time begins, to 1970 */

#define SHORTEST_REQUEST 14 /* TWAMP-Light without padding */
#define BASE_SIZE 44	    /* RFC 8762 without TLVs */
#define ECHO_SIZE 48	    /* DoubleZero; also with the header of a first TLV */

#define ECHO_SETS 2048 /* of answered echoes; a power of two */
#define ECHO_SET_SIZE 8

#define LONGEST_DWELL (1 << 28) /* of another reflector's reply, in 2^-32 s */

#define TTL_MAX 255
#define DSCP_BITS 0xfc
#define IP6_ECN_BITS 0x00300000 /* of the first word */

/* The first four bytes of a TLV (RFC 8972 section 4), little-endian. */
#define TLV_FLAGS 0xe0u	   /* U, M and I; a reflector's to say */
#define TLV_RESERVED 0x1fu /* echoed */
#define TLV_EXTRA_PADDING (1u << 8)

/* As much of a datagram as is looked at, and of that as much as changes. */
struct datagram {
	struct base {
		struct udphdr udp;
		__u32 words[BASE_SIZE / 4];
	} base;
	__be32 tail; /* the first TLV's header, or padding */
};

#define UDP_CHECK 6 /* where the checksum is in the UDP header */

_Static_assert(sizeof(struct datagram) == 8 + ECHO_SIZE, "read in one piece");

#endif
