// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestReflectInTheKernel(t *testing.T) {
	near, far := twoHosts(t)
	for _, mode := range []string{"auto", "tcx", "clsact", "socket"} {
		hook := strings.Replace(mode, "auto", "tcx", 1)
		errs, stop := reflectingIn(t, far, "--mode", mode, "--interface", "eth1")
		if mode != "socket" {
			awaitState(t, "the kernel answers by "+hook, func() bool {
				return strings.Contains(errs.String(), "the kernel answers on interface") && strings.Contains(errs.String(), hook)
			})
		}
		for _, profile := range []string{"stamp", "twamp-light", "doublezero"} {
			code, out, _ := invoke(t, "ping", "--netns", near.Name, "--profile", profile, "--json", "-c", "50", "-i", "2ms", "10.1.0.2")
			if p := parsePing(t, out); code != 0 || p.summary.Received != 50 {
				t.Errorf("%s by %s: exit %d, %+v", profile, mode, code, p.summary)
			}
		}
		if code := stop(); code != 0 {
			t.Errorf("%s: exit %d after a stop, want 0", mode, code)
		}
		want := fmt.Sprintf(`"interface":"eth1","mode":%q,"result":"answered","count":150`, hook)
		if log := errs.String(); !strings.Contains(log, want) {
			t.Errorf("%s: the log does not say %s:\n%s", mode, want, log)
		}
	}
}
