#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: scripts/lint.sh
#
# Checks what can be checked without running it: formats, licence lines, shell scripts, the systemd unit, go.mod, and the Go
# code by go vet, staticcheck and errorlint. Runs all checks, and fails if one of them did. They need shellcheck,
# clang-format-19 and systemd-analyze (scripts/setup.sh); the Go linters are run at pinned versions, so that they stay out
# of go.mod.
set -euo pipefail
shopt -s globstar nullglob
cd "$(dirname "$0")/.."

readonly staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
readonly errorlint=github.com/polyfloyd/go-errorlint@v1.8.0

failed=()

# check NAME COMMAND...: runs the command and remembers NAME if it fails.
check() {
	local name=$1
	shift
	if ! "$@"; then
		failed+=("$name")
	fi
}

format_go() {
	local files
	files=$(gofmt -l .) || return
	if [[ -n $files ]]; then
		printf 'not as gofmt formats it (make fmt):\n%s\n' "$files"
		return 1
	fi
}

format_c() {
	local files=(bpf/*.c bpf/*.h)
	((${#files[@]} == 0)) || clang-format-19 --dry-run --Werror "${files[@]}"
}

# Shell scripts are what ends in .sh or starts by naming a shell.
shell_scripts() {
	local file first
	for file in .ci/* scripts/**; do
		[[ -f $file ]] || continue
		IFS= read -r first <"$file" || true
		if [[ $file == *.sh || $first =~ ^#!.*[/\ ](ba|da)?sh( |$) ]]; then
			printf '%s\n' "$file"
		fi
	done
}

check_shell() {
	local files
	mapfile -t files < <(shell_scripts)
	shellcheck "${files[@]}"
}

# The licence of a source file stands in its first lines (a script's first line is its interpreter, a C file's may be a
# build constraint). What bpf2go generates, and what is copied into bpf/headers, is as it comes.
check_licence() {
	local file status=0 files
	mapfile -t files < <(shell_scripts; printf '%s\n' Makefile **/*.go bpf/*.c bpf/*.h)
	for file in "${files[@]}"; do
		if [[ $file == bpf/*_bpfel.go ]]; then
			continue
		fi
		if ! head -n 5 "$file" | grep -q 'SPDX-License-Identifier: '; then
			echo "$file: no SPDX-License-Identifier in its first lines"
			status=1
		fi
	done
	return "$status"
}

# systemd says of what it does not know only that it ignores it. The program is not installed here.
check_unit() {
	local dir drop_in said status=0
	dir=$(mktemp -d)
	mkdir "$dir/xtwamp.service.d"
	sed 's|^ExecStart=/usr/bin/xtwamp |ExecStart=/bin/true |' scripts/packaging/xtwamp.service >"$dir/xtwamp.service"
	for drop_in in '' scripts/packaging/single-namespace.conf; do
		[[ -z $drop_in ]] || cp "$drop_in" "$dir/xtwamp.service.d/"
		said=$(systemd-analyze verify --man=no "$dir/xtwamp.service" 2>&1) || status=1
		if [[ -n $said ]]; then
			printf '%s\n' "$said"
			status=1
		fi
	done
	rm -r "$dir"
	return "$status"
}

check gofmt format_go
check clang-format format_c
check licence check_licence
check shellcheck check_shell
check 'systemd-analyze verify' check_unit
check 'go mod tidy' go mod tidy -diff
check 'go vet' go vet ./...
check staticcheck go run "$staticcheck" ./...
check errorlint go run "$errorlint" -errorf ./...

if ((${#failed[@]} > 0)); then
	(IFS=,; echo "lint: failed: ${failed[*]}" >&2)
	exit 1
fi
