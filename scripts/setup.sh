#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: scripts/setup.sh TOOL...
#
# Makes sure that each TOOL (the name of a command, from the table below) is there, installing from Debian what is
# missing. Does nothing, and needs neither root nor a network, when all of them are.
set -euo pipefail

# Versions are part of the names where the version decides the result: the compiler makes the committed BPF object.
declare -A package=(
	[chromium]='chromium fonts-dejavu-core' # without a font it draws no text
	[clang-19]=clang-19
	[clang-format-19]=clang-format-19
	[ethtool]=ethtool
	[gcc]='gcc libc6-dev' # for go test -race
	[ip]=iproute2
	[llvm-strip-19]=llvm-19
	[ping]=iputils-ping
	[nft]=nftables
	[nsenter]=util-linux
	[prometheus]=prometheus
	[prometheus-alertmanager]=prometheus-alertmanager
	[qemu-system-x86_64]=qemu-system-x86
	[rpm]=rpm
	[shellcheck]=shellcheck
	[systemd-analyze]=systemd
	[tshark]=tshark
)

tools=() packages=()
for tool in "$@"; do
	if [[ -z ${package[$tool]:-} ]]; then
		echo "setup.sh: $tool: no package known for this tool" >&2
		exit 2
	fi
	if ! command -v "$tool" >/dev/null; then
		tools+=("$tool")
		read -ra names <<<"${package[$tool]}"
		packages+=("${names[@]}")
	fi
done
if ((${#tools[@]} == 0)); then
	exit 0
fi

if ! command -v apt-get >/dev/null; then
	echo "setup.sh: not found: ${tools[*]}; there is no apt-get to install them with, so install them by hand" >&2
	exit 1
fi
if ((EUID != 0)); then
	echo "setup.sh: not found: ${tools[*]}; run as root, or: apt-get install ${packages[*]}" >&2
	exit 1
fi

# Tests start what they need themselves: no package starts a service now.
readonly policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi

echo "setup.sh: installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" update </dev/null
"${apt[@]}" install -y --no-install-recommends "${packages[@]}" </dev/null >/dev/null

for tool in "${tools[@]}"; do
	if ! command -v "$tool" >/dev/null; then
		echo "setup.sh: $tool: still not found after installing ${package[$tool]}" >&2
		exit 1
	fi
done
