#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: scripts/packaging/package.sh VERSION COMMIT DATE
#
# Makes build/xtwamp_*.deb and build/xtwamp-*.rpm of bin/xtwamp, which has to be built of the same commit. The date is that
# of the commit, and of all files in the packages: the same commit makes the same packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2 # run at a pinned version, so that it stays out of go.mod
readonly version=$1 commit=$2 date=$3

# What git describes between two versions (v1.2.3-4-gabcdef) is later than the first, which no package may have a - for.
VERSION=${version#v}
[[ $VERSION == [0-9]* ]] || VERSION=0~$VERSION
export VERSION=${VERSION//-/+}
ARCH=$(go env GOARCH)
export ARCH
SOURCE_DATE_EPOCH=$(date --date="$date" +%s 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH

rm -rf build/package build/xtwamp[_-]*.{deb,rpm}
mkdir -p build/package/man build/package/completion
go run -tags man -ldflags "-X main.version=$version -X main.commit=$commit -X main.date=$date" ./cmd/xtwamp build/package/man
gzip --best --no-name build/package/man/*
for shell in bash zsh fish; do
	bin/xtwamp completion "$shell" >"build/package/completion/$shell"
done
# The reference configuration with every key commented out: all defaults, and nothing measured yet.
sed '/^[^#]/s/^/#/' cmd/xtwamp/testdata/reference.yml >build/package/xtwamp.yml

for format in deb rpm; do
	go run "$nfpm" package --config scripts/packaging/nfpm.yaml --packager "$format" --target build/
done
