# SPDX-License-Identifier: Apache-2.0

# The version comes from git. A source tree without its own .git (a tarball) says so; packagers set VERSION, COMMIT and
# DATE on the command line. The date is the commit's, not the clock's: the same commit makes the same binary.
VERSION := dev
COMMIT  := unknown
DATE    := unknown
ifneq ($(wildcard .git),)
VERSION := $(or $(shell git describe --tags --dirty 2>/dev/null),$(VERSION))
COMMIT  := $(or $(shell git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null),$(COMMIT))
DATE    := $(or $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null),$(DATE))
endif

# Everything is built without cgo: static binaries, one build cache. The race detector alone needs it and turns it on.
export CGO_ENABLED := 0

.PHONY: help build generate test test-root lint fmt fuzz bench demo kernels package clean

help: ## print this list (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## build bin/xtwamp, a static binary; needs only Go
	go build -trimpath -buildvcs=false -o bin/xtwamp \
		-ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)' ./cmd/xtwamp

generate: ## compile the BPF program into bpf/ (to be committed); installs clang 19 if it is missing
	scripts/setup.sh clang-19 llvm-strip-19
	go generate ./bpf

test: need-root build ## install what is missing and run every check and test; needs root; a skipped test is a failure
	scripts/setup.sh clang-19 llvm-strip-19 clang-format-19 shellcheck gcc tshark ip ethtool nft ping systemd-analyze rpm prometheus prometheus-alertmanager chromium
	scripts/lint.sh
	scripts/check-generated.sh
	scripts/fuzz.sh $(or $(FUZZTIME),3s)
	go run ./scripts/runtests

test-root: need-root ## run the tests of the packages that need root (namespaces, BPF) and no others
	scripts/setup.sh gcc tshark ip ethtool nft ping systemd-analyze rpm prometheus chromium
	go run ./scripts/runtests -root

lint: ## check formats, vet, staticcheck, errorlint, shellcheck, the unit, go.mod, licences
	scripts/setup.sh clang-format-19 shellcheck systemd-analyze
	scripts/lint.sh

fmt: ## format Go and C
	scripts/setup.sh clang-format-19
	gofmt -w .
	clang-format-19 -i bpf/*.c bpf/*.h

fuzz: ## fuzz each target for FUZZTIME (10s)
	scripts/fuzz.sh $(or $(FUZZTIME),10s)

bench: need-root build ## run all benchmarks, or the parts in BENCH (latency answers throughput programs code scale); needs root
	scripts/setup.sh ip ping
	$(if $(filter-out scale,$(or $(BENCH),all)),go run ./scripts/bench $(filter-out scale,$(BENCH)))
	$(if $(filter scale,$(or $(BENCH),scale)),go run ./scripts/scale)

demo: build ## two switches in network namespaces, measured for DEMO_SECONDS (60); needs root and iproute2
	scripts/demo.sh

kernels: ## run the root tests on Linux 5.10 and 6.1 in emulated machines; downloads Debian's kernels; needs qemu and apt
	scripts/setup.sh qemu-system-x86_64 ip ethtool nsenter
	go run ./scripts/kernels

package: build ## make a deb and an rpm of bin/xtwamp in build/
	scripts/packaging/package.sh '$(VERSION)' '$(COMMIT)' '$(DATE)'

clean: ## remove what the other targets built
	rm -rf bin build

.PHONY: need-root
need-root:
	@[ "$$(id -u)" = 0 ] || { echo 'this target makes network namespaces and loads BPF programs: run it as root' >&2; exit 1; }
