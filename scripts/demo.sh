#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: scripts/demo.sh
#
# Two "switches", each a network namespace with a running xtwamp, joined by two links that a ledger tells them of, measure
# each other for DEMO_SECONDS (60) and submit to that ledger, which has two endpoints and a namespace of its own. In the
# middle it is out for a quarter of the time, and an epoch ends. Then the samples are read back from the stores and compared
# with the ledger's accounts, and everything is removed again, also after Ctrl-C or a failure. With DEMO_KEEP=1 it goes on
# until it is stopped and prints how to look around. Needs root, iproute2, Go and bin/xtwamp (make build).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly seconds=${DEMO_SECONDS:-60} keep=${DEMO_KEEP:-0}
readonly xtwamp=$PWD/bin/xtwamp
readonly a=xtwamp-demo-$$-a b=xtwamp-demo-$$-b l=xtwamp-demo-$$-l
daemons=() ledger='' namespaces=()

if ! [[ $seconds =~ ^[1-9][0-9]*$ ]] || ((seconds < 30)); then
	echo "demo: DEMO_SECONDS=$seconds: expected a number of seconds, 30 or more" >&2
	exit 2
fi
if ((EUID != 0)); then
	echo 'demo: network namespaces and BPF need root' >&2
	exit 1
fi
if ! command -v ip >/dev/null; then
	echo 'demo: ip is missing: install iproute2' >&2
	exit 1
fi

dir=$(mktemp -d)

# shellcheck disable=SC2317 # called by trap
cleanup() {
	local status=$? pid ns
	trap - EXIT
	trap '' INT TERM # cleaning up is not to be cut off
	for pid in "${daemons[@]}" $ledger; do
		kill -TERM "$pid" 2>/dev/null || true
	done
	for pid in "${daemons[@]}" $ledger; do
		wait "$pid" 2>/dev/null || true
	done
	for ns in "${namespaces[@]}"; do
		ip netns del "$ns" || true
	done
	if ((status != 0 && status < 128)) && [[ -n $(ls "$dir"/*.log 2>/dev/null) ]]; then
		tail -n 20 "$dir"/*.log >&2
	fi
	rm -rf "$dir"
	exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

heading() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# config SIDE PEER: the configuration of one switch. Link n is 172.16.n.0/31 and fd00:n::/64.
config() {
	local side=$1 peer=$2
	cat <<-END
		device: switch-$side
		control: {socket: $dir/$side.sock}
		web: {listen: ["127.0.0.1:9862"]}
		store: {path: $dir/$side/samples.db, commit_interval: 1s, min_free_bytes: 1MiB}
		probe: {interval: 250ms, timeout: 500ms, late_window: 500ms}
		targets:
		  - {name: ipv6, address: "fd00:2::$(host "$peer")", interface: eth2, dscp: 46}
		discovery:
		  doublezero: {enabled: true, refresh: 5s}
		doublezero:
		  serviceability_program: $(known program serviceability)
		  telemetry_program: $(known program telemetry)
		  rpc_urls: [http://10.99.$(host "$side").1:8899, http://10.99.$(host "$side").1:8898]
		  device: $(known device "$side")
		  keypair_file: $dir/$side.key
		submit:
		  doublezero: {enabled: true, interval: 2s, sample_interval: 250ms}
		  file: {enabled: true, directory: $dir/$side/out}
	END
}

# known KIND NAME: a public key that the ledger told.
known() { awk -v kind="$1" -v name="$2" '$1 == kind && $2 == name { print $3 }' "$dir/ledger.out"; }

# tell REQUEST: steers the ledger.
tell() {
	# shellcheck disable=SC2016 # for the inner shell
	ip netns exec "$l" bash -c '
		exec 3<>/dev/tcp/127.0.0.1/8880
		printf "POST /%s HTTP/1.0\r\nContent-Length: 0\r\n\r\n" "$1" >&3
		read -r _ status _ <&3
		[[ $status == 204 ]]' - "$1"
}

host() { [[ $1 == a ]] && echo 0 || echo 1; }

start() {
	local side=$1 ns=$2 peer=$3
	mkdir -p "$dir/$side"
	config "$side" "$peer" >"$dir/$side.yml"
	"$xtwamp" config check "$dir/$side.yml" >/dev/null
	# exec: the pid is the daemon's, not that of a shell or of ip around it.
	ip netns exec "$ns" "$xtwamp" run --config "$dir/$side.yml" >"$dir/$side.log" 2>&1 &
	daemons+=($!)
}

# metrics NAMESPACE: what a scrape there gives, with no more than bash.
metrics() {
	# shellcheck disable=SC2016 # for the inner shell
	ip netns exec "$1" bash -c '
		exec 3<>/dev/tcp/127.0.0.1/9862
		printf "GET /metrics HTTP/1.0\r\n\r\n" >&3
		cat <&3'
}

heading 'Two switches, two links'
for ns in "$a" "$b" "$l"; do
	ip netns add "$ns"
	namespaces+=("$ns")
	ip -n "$ns" link set lo up
done
for n in 1 2; do
	ip link add "eth$n" netns "$a" type veth peer name "eth$n" netns "$b"
	for side in a b; do
		ns=$([[ $side == a ]] && echo "$a" || echo "$b")
		ip -n "$ns" addr add "172.16.$n.$(host "$side")/31" dev "eth$n"
		ip -n "$ns" addr add "fd00:$n::$(host "$side")/64" dev "eth$n" nodad
		ip -n "$ns" link set "eth$n" up
	done
done
for side in a b; do
	ns=$([[ $side == a ]] && echo "$a" || echo "$b")
	ip link add mgmt netns "$ns" type veth peer name "mgmt-$side" netns "$l"
	ip -n "$ns" addr add "10.99.$(host "$side").2/30" dev mgmt
	ip -n "$l" addr add "10.99.$(host "$side").1/30" dev "mgmt-$side"
	ip -n "$ns" link set mgmt up
	ip -n "$l" link set "mgmt-$side" up
done
ip -n "$a" -br addr show | sed 's/^/  switch-a  /'
ip -n "$b" -br addr show | sed 's/^/  switch-b  /'

# A slot of 50 ms in place of 400 ms: a write is final after 1.6 s.
go build -o "$dir/demoledger" ./scripts/demoledger
ip netns exec "$l" "$dir/demoledger" -listen 0.0.0.0:8899 -listen 0.0.0.0:8898 -control 127.0.0.1:8880 -slot-time 50ms \
	-device "a=$dir/a.key" -device "b=$dir/b.key" -link a:b:172.16.1.0/31 -link a:b:172.16.2.0/31 >"$dir/ledger.out" 2>"$dir/ledger.log" &
ledger=$!
until grep -q '^ready$' "$dir/ledger.out"; do
	kill -0 "$ledger" || exit 1
	sleep 0.1
done

start a "$a" b
start b "$b" a

if [[ $keep == 1 ]]; then
	heading 'Running until Ctrl-C; look around with'
	cat <<-END
		  $xtwamp status --socket $dir/a.sock
		  $xtwamp samples --socket $dir/a.sock --since 10s
		  ip netns exec $a $xtwamp ping 172.16.1.1
		  ip netns exec $a bash                            # then: tc filter show dev eth1 ingress
		  ip netns exec $a $xtwamp ledger verify --config $dir/a.yml --socket $dir/a.sock
		  tail -f $dir/a.log $dir/a/out/*.ndjson
	END
	wait -n "${daemons[@]}"
	echo 'demo: a daemon has ended by itself' >&2
	exit 1
fi

heading "Measuring for $seconds s, submitting every 2 s"
begin=$SECONDS out=0
while ((SECONDS - begin < seconds)); do
	if ((out == 0 && SECONDS - begin >= seconds / 4)); then
		printf '\n  the ledger is out: one endpoint answers 503, the other not at all; and an epoch ends\n'
		tell "fault?kind=503&address=0.0.0.0:8899&for=$((seconds / 4))s"
		tell "fault?kind=silence&address=0.0.0.0:8898&for=$((seconds / 4))s"
		tell rollover
		out=1
	elif ((out == 1 && SECONDS - begin >= seconds / 2)); then
		printf '\n  the ledger is back\n'
		out=2
	fi
	for pid in "${daemons[@]}"; do
		if ! kill -0 "$pid" 2>/dev/null; then
			echo 'demo: a daemon has ended by itself' >&2
			exit 1
		fi
	done
	sleep 1
	printf '.'
done
echo

heading 'How switch-a is: xtwamp status'
"$xtwamp" status --socket "$dir/a.sock" | sed 's/^/  /' || true # its exit code says how

heading 'Metrics of switch-a'
metrics "$a" >"$dir/metrics"
grep -E '^xtwamp_(probes_(sent|received|lost)_total|timestamps_total|attach_info|datapath_packets_total|reflector_packets_total|store_samples_recorded_total|samples_(offered|delivered|waiting)_total|samples_waiting|ledger_account_samples|ledger_zeros|ledger_endpoint_(up|in_use|requests_total))' "$dir/metrics" |
	grep -v ' 0$' | sed 's/^/  /'

heading 'An operator looks by hand: xtwamp ping'
ip netns exec "$a" "$xtwamp" ping -c 20 -i 20ms -q 172.16.1.1 | sed 's/^/  /'

heading 'Stopping'
for pid in "${daemons[@]}"; do
	kill -TERM "$pid"
done
for pid in "${daemons[@]}"; do
	if ! wait "$pid"; then
		echo 'demo: a daemon did not stop cleanly' >&2
		exit 1
	fi
done
daemons=()
left=$(for ns in "$a" "$b"; do
	for n in 1 2; do
		ip netns exec "$ns" tc filter show dev "eth$n" ingress 2>/dev/null
		ip netns exec "$ns" tc filter show dev "eth$n" egress 2>/dev/null
	done
done)
if [[ -n $left ]]; then
	printf 'demo: filters were left behind:\n%s\n' "$left" >&2
	exit 1
fi

heading 'The last samples of switch-a, from its store'
"$xtwamp" samples --store "$dir/a/samples.db" | (
	read -r header
	printf '  %s\n' "$header"
	tail -n 6 | sed 's/^/  /'
)

heading 'What switch-a logged of the ledger'
grep '"logger":"submit' "$dir/a.log" | sed -E 's/.*"level":"([a-z]+)","ts":"[^T]*T([^.]*)[^"]*","logger":"([^"]*)","msg":"([^"]*)",?(.*)\}/  \2 \1 \3: \4 \5/'

heading 'The ledger compared with the stores: xtwamp ledger verify'
status=0
for side in a b; do
	ns=$([[ $side == a ]] && echo "$a" || echo "$b")
	ip netns exec "$ns" "$xtwamp" ledger verify --config "$dir/$side.yml" --store "$dir/$side/samples.db" | sed 's/^/  /' || status=1
done

heading 'Summary'
for side in a b; do
	"$xtwamp" samples --store "$dir/$side/samples.db" --json >"$dir/$side.ndjson"
	stored=$(wc -l <"$dir/$side.ndjson")
	answered=$(grep -c '"rtt_ns"' "$dir/$side.ndjson") || true
	kernel=$(grep -c '"tx":"tc_egress","rx":"tc_ingress"' "$dir/$side.ndjson") || true
	delivered=$(cat "$dir/$side/out/"*.ndjson | wc -l)
	printf '  switch-%s: %d samples stored, %d answered, %d with both time stamps by eBPF, %d delivered to files\n' \
		"$side" "$stored" "$answered" "$kernel" "$delivered"
	# Three paths at 4 probes/s, two of which begin when the ledger has told of them; while only one side is up, at the start
	# and at the end, its probes are lost.
	if ((stored < 3 * 4 * (seconds - 2) || answered < stored - 3 * 4 * 2 || answered == 0 || delivered != stored)); then
		status=1
	fi
	if ((kernel < answered)); then
		printf '  switch-%s: this kernel did not let eBPF stamp every probe:\n' "$side"
		grep -hE 'refused|kernel half' "$dir/$side.log" | sed 's/^/    /' || true
	fi
done
if ((status != 0)); then
	echo 'demo: samples are missing' >&2
fi
exit "$status"
