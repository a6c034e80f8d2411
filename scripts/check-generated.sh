#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: scripts/check-generated.sh
#
# Fails if the generated BPF code and objects in bpf/ are not what `make generate` makes of the sources beside them.
# Generates in a copy, so that the work tree keeps what it has. Needs clang-19 and llvm-strip-19 (scripts/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R go.mod go.sum bpf "$copy"
rm -f "$copy"/bpf/*_bpfel.go "$copy"/bpf/*_bpfel.o

(cd "$copy" && go generate ./bpf)
if ! diff -r bpf "$copy/bpf"; then
	echo 'check-generated.sh: bpf/ is not what its sources generate: run make generate and commit the result' >&2
	exit 1
fi
