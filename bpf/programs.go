// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ForeignTCX names the programs at tcx of a device, in the calling thread's
// network namespace, that are not of this product, each behind its direction. A
// name takes CAP_SYS_ADMIN; without it a program has its number. Before Linux
// 6.6 there are none.
func ForeignTCX(ifindex int) ([]string, error) {
	var names []string
	for _, side := range []struct {
		name string
		at   ebpf.AttachType
	}{{"ingress", ebpf.AttachTCXIngress}, {"egress", ebpf.AttachTCXEgress}} {
		result, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: side.at})
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // which is what a kernel without tcx says
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list programs at tcx %s: %w", side.name, err)
		}
		for _, p := range result.Programs {
			if name := programName(p.ID); !strings.HasPrefix(name, filterPrefix+"_") {
				names = append(names, side.name+" "+name)
			}
		}
	}
	return names, nil
}

func programName(id ebpf.ProgramID) string {
	number := fmt.Sprintf("program %d", id)
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return number // no right, or it is gone
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name == "" {
		return number
	}
	return info.Name
}

// ForeignFilter says whether a clsact filter of that name is not of this
// product.
func ForeignFilter(name string) bool { return !strings.HasPrefix(name, filterPrefix+"-") }
