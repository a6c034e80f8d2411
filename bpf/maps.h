/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs share with each other and with their loader. */
#ifndef XTWAMP_MAPS_H
#define XTWAMP_MAPS_H

/* Counts foreign traffic by verdict too. Packet tests want to see every exit. */
volatile const bool count_foreign = false;

/* A bit for each local port of a path, and for each remote one: most traffic is told by them. */
enum side { LOCAL, REMOTE, SIDE__MAX };
__u64 ports[SIDE__MAX][65536 / 64];

/* max_entries of these are set by the loader. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct path_key);
	__type(value, struct probe_path);
} paths SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF); /* since 5.8 */
	__uint(max_entries, 4096);
	__type(value, struct sample);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICT__MAX);
	__type(key, enum verdict);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline struct sample *slot_of(const struct probe_path *path, __u32 seq)
{
	__u32 index = path->slot_base + (seq & path->slot_mask);

	return bpf_map_lookup_elem(&slots, &index);
}

static __always_inline void count(enum verdict v)
{
	enum verdict key;
	__u64 *n;

	if (v < VERDICT__FOREIGN_MAX && !count_foreign)
		return;
	key = v; /* not the argument: that would be put on the stack before the test */
	n = bpf_map_lookup_elem(&counters, &key);
	if (n)
		(*n)++;
}

#endif
