/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs and their Go loader share: map keys and values, the ring
 * record, and the enums that both sides name. bpf2go turns these into Go
 * types; a test compares the layouts through the object's BTF.
 */
#ifndef XTWAMP_ABI_H
#define XTWAMP_ABI_H

/* Wire profile of a path; decides how its replies are read. */
enum profile {
	PROFILE_STAMP = 0,	 /* RFC 8762 with RFC 8972's SSID */
	PROFILE_TWAMP_LIGHT = 1, /* RFC 5357 appendix I */
	PROFILE_DOUBLEZERO = 2,	 /* 48-byte echo */
};

/* IPv4 addresses are kept v4-mapped (::ffff:a.b.c.d). */
struct path_key {
	__be64 local[2];
	__be64 remote[2];
	__be16 local_port;
	__be16 remote_port;
	__u32 pad; /* zero: it is hashed too */
};

_Static_assert(sizeof(struct path_key) == 40, "path_key has no hidden padding");

/* struct path is the kernel's (a file's path), hence the longer name. */
struct probe_path {
	__u32 id;
	__u32 slot_base; /* its slots are slot_base .. slot_base + slot_mask */
	__u32 slot_mask; /* a power of two less one */
	__u32 interface; /* replies must come in here; 0: anywhere */
	__u32 device;	 /* whose XDP program may record them; 0: none's */
	__u16 ssid;	 /* host order; only profile stamp compares it */
	__u16 pad;
	enum profile profile;
};

_Static_assert(sizeof(struct probe_path) == 28, "probe_path has no hidden padding");

enum sample_flag {
	SAMPLE_SENT = 1 << 0,	   /* t1, wire_t1, seq and path are valid */
	SAMPLE_ANSWERED = 1 << 1,  /* t4 and what follows from the reply are valid */
	SAMPLE_HAS_TIMES = 1 << 2, /* t2, t3 and error_estimate are valid */
	SAMPLE_HAS_TTL = 1 << 3,   /* remote_ttl is valid */
	SAMPLE_DUPLICATE = 1 << 4, /* ring only: the slot was answered before */
	SAMPLE_XDP = 1 << 5,	   /* t4 is XDP's, else that of tc ingress */
};

/* One probe: what a slot holds and, once it is answered, a ring record says. */
struct sample {
	__u64 t1;	/* ns, CLOCK_MONOTONIC, at tc egress */
	__u64 t4;	/* ns, CLOCK_MONOTONIC, at ingress */
	__be64 wire_t1; /* the probe's timestamp as sent: the nonce */
	__be64 t2;	/* far receive time as received */
	__be64 t3;	/* far send time as received */
	__u32 path;
	__u32 seq;	       /* the probe's sequence number */
	__u32 reply_seq;       /* the reflector's own number; seq if stateless */
	__u32 ifindex;	       /* where the reply came in */
	__be16 error_estimate; /* the far side's, as received */
	__u16 ssid;	       /* as the reply carried it; 0: none */
	__u16 length;	       /* UDP payload of the reply, bytes */
	__u8 ttl;	       /* TTL or hop limit of the reply as it came in */
	__u8 remote_ttl;       /* TTL of the probe as the far side saw it */
	__u8 tos;	       /* DSCP and ECN of the reply as it came in */
	__u8 pad[3];
	enum sample_flag flags; /* written last */
};

_Static_assert(sizeof(struct sample) == 72, "sample has no hidden padding");

/*
 * How the programs leave a packet. Every exit has a name; counter
 * xtwamp_datapath_packets_total shows them.
 *
 * Traffic that is nobody's business here leaves by the first few verdicts.
 * They are not counted: a counter would cost such traffic more than the whole
 * rest of the program does.
 */
enum verdict {
	VERDICT_NOT_IP,
	VERDICT_NOT_UDP,
	VERDICT_OTHER_PORT, /* no path uses the local port, or none the remote one */
	VERDICT_OTHER_PATH, /* paths do, but not with these addresses */
	VERDICT__FOREIGN_MAX,

	/* Passed to the stack: cannot be told whether it is ours. */
	VERDICT_UNPARSED = VERDICT__FOREIGN_MAX, /* cut short, or wrong version */
	VERDICT_IP_OPTIONS,
	VERDICT_FRAGMENT,
	VERDICT_EXTENSION_HEADER,

	/* Of a known path, passed to the stack. */
	VERDICT_TAGGED,	    /* belongs to a VLAN device above this one */
	VERDICT_MERGED,	    /* several datagrams in one (GRO); the stack splits it */
	VERDICT_BAD_LENGTH, /* UDP and IP disagree, or cut short */
	VERDICT_SCATTERED,  /* outside the skb's own memory, and none to gather it */
	VERDICT_PROBE_SENT, /* T1 taken */
	VERDICT_PROBE_SEEN, /* passed a lower device too; the first T1 stays */
	VERDICT_NO_SLOT,    /* the path's slots lie outside the map */
	VERDICT_BAD_FORMAT, /* too short or not of the path's profile */
	VERDICT_UNMATCHED,  /* no probe with this number and timestamp */
	VERDICT_WRONG_SSID,
	VERDICT_WRONG_INTERFACE,
	VERDICT_OVERSIZE, /* too long to verify here; left to the socket */
	VERDICT_BAD_CHECKSUM,
	VERDICT__ENDED_MIN,

	/* A reply of a known path that ends here; the socket never sees it. */
	VERDICT_ANSWERED = VERDICT__ENDED_MIN,
	VERDICT_RING_FULL, /* recorded in the slot only */
	VERDICT_DUPLICATE,
	VERDICT_DUPLICATE_RING_FULL, /* seen nowhere but in this counter */

	VERDICT__MAX
};

/*
 * What follows is the reflector's.
 */

/* IPv4 addresses are kept v4-mapped here too. */
struct address {
	__be64 words[2];
};

struct listen_key {
	struct address address;
	__u32 device; /* 0 at tc, anywhere; with XDP the one that has the address */
	__be16 port;
	__u16 pad; /* zero: it is hashed too */
};

_Static_assert(sizeof(struct listen_key) == 24, "listen_key has no hidden padding");

struct listener {
	__u8 mac[6]; /* of the device */
	__u16 pad;
};

_Static_assert(sizeof(struct listener) == 8, "listener has no hidden padding");

struct prefix_key {
	__u32 length; /* bits that count, from family on; of an IPv4 prefix 96 more */
	__u32 family; /* 4 or 6: ::/0 is not all of IPv4 */
	__be32 address[4];
};

_Static_assert(sizeof(struct prefix_key) == 24, "prefix_key has no hidden padding");

struct bucket {
	__u64 paid; /* CLOCK_MONOTONIC ns up to which requests are paid for */
};

/*
 * How the reflector leaves a packet. Those that parse.h gives have the same
 * number as there. Again the first ones are not counted, nor are here those
 * that cannot be told to be ours.
 */
enum reflect_verdict {
	REFLECT_NOT_IP = VERDICT_NOT_IP,
	REFLECT_NOT_UDP = VERDICT_NOT_UDP,
	REFLECT_OTHER_PORT = VERDICT_OTHER_PORT, /* none of our sockets' */
	REFLECT_OTHER_ADDRESS,			 /* to our port, but elsewhere */
	REFLECT_UNPARSED = VERDICT_UNPARSED,
	REFLECT_IP_OPTIONS = VERDICT_IP_OPTIONS,
	REFLECT_FRAGMENT = VERDICT_FRAGMENT,
	REFLECT_EXTENSION_HEADER = VERDICT_EXTENSION_HEADER,
	REFLECT__FOREIGN_MAX,

	/* Passed to the socket, which may answer. */
	REFLECT_TAGGED = REFLECT__FOREIGN_MAX, /* belongs to a VLAN device above this one */
	REFLECT_STALE,			       /* user space has not been heard of for a while */
	REFLECT_MERGED,	      /* several datagrams in one (GRO); the stack splits it */
	REFLECT_OTHER_HOST,   /* of the link: broadcast, or seen in passing */
	REFLECT_OVERSIZE,     /* XDP: too long to be looked at there */
	REFLECT_BAD_LENGTH,   /* UDP and IP disagree, or cut short */
	REFLECT_NO_CHECKSUM,  /* over IPv6; the stack drops it */
	REFLECT_SHORT,	      /* its answer would be longer */
	REFLECT_TLVS,	      /* others than one Extra Padding */
	REFLECT_NOT_WRITABLE, /* no memory */

	REFLECT_ANSWERED,
	REFLECT__REFUSED_MIN,

	/* Dropped here; the socket would do the same. */
	REFLECT_OWN_PORT = REFLECT__REFUSED_MIN, /* two reflectors could go on for ever */
	REFLECT_BAD_ADDRESS,			 /* from or to one that has no business here */
	REFLECT_NOT_ALLOWED,
	REFLECT_TOO_SHORT,
	REFLECT_RATE_LIMITED,
	REFLECT_IS_REPLY,    /* of a reflector on another port: as OWN_PORT */
	REFLECT_SEND_FAILED, /* half changed */

	REFLECT__MAX
};

_Static_assert((int)REFLECT_OTHER_ADDRESS == (int)VERDICT_OTHER_PATH, "no number has two names");

struct counter_key {
	__u32 ifindex;
	enum reflect_verdict verdict;
};

_Static_assert(sizeof(struct counter_key) == 8, "counter_key has no hidden padding");

#endif
