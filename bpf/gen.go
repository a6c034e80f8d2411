// SPDX-License-Identifier: Apache-2.0

package bpf

// The object and its Go types are generated and committed, so that building
// needs Go alone; CI generates them again and wants the same bytes. Hence a
// pinned compiler, headers of our own (headers/README.md) and relative paths.
//
//   - -mcpu=v3 names the newest instruction set that every supported kernel
//     (5.10 and later) has; v4 came with 6.6. clang's own default has moved
//     between releases.
//   - -target bpfel: the hosts this is for are little-endian.
//   - -type: bpf2go emits enums that are only struct members when asked to.
//   - -nostdinc keeps the build machine's headers out.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type profile -type sample_flag xtwamp xtwamp.bpf.c -- -O2 -mcpu=v3 -nostdinc -Iheaders -Wall -Wextra -Werror -Wno-sign-compare -Wno-unused-parameter
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type reflect_verdict reflect reflect.bpf.c -- -O2 -mcpu=v3 -nostdinc -Iheaders -Wall -Wextra -Werror -Wno-sign-compare -Wno-unused-parameter
