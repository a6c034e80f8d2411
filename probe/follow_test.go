// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// await waits until something is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	again := time.NewTicker(10 * ms)
	defer again.Stop()
	for limit := time.After(30 * time.Second); !so(); {
		select {
		case <-again.C:
		case <-limit:
			t.Fatalf("no %s within 30s", what)
		}
	}
}

// The namespace of the interfaces comes, goes and comes back as another.
func TestNamespaceThatComesAndGoes(t *testing.T) {
	lab := netnstest.New(t)
	far, elsewhere := lab.Namespace("far"), lab.Namespace("elsewhere")
	reflectIn(t, far, nil)
	name := fmt.Sprintf("xtwt%d-coming", os.Getpid())
	place, err := netns.ParsePlace(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, rate := range []struct {
		name   string
		target target.Target
	}{
		{"slow", to(farAddr, func(t *target.Target) { t.Interval, t.Interface = 20*ms, "eth1" })},
		{"in slots", inSlots("fast", farAddr, func(t *target.Target) { t.Interface = "eth1" })},
	} {
		t.Run(rate.name, func(t *testing.T) {
			r := begin(t, elsewhere, func(c *Config) { c.Namespace, c.Place = nil, place }, rate.target)
			stamped := func(s store.Sample) bool { return s.TX == store.TCEgress && s.RX == store.TCIngress }
			r.until("not sent", func(s store.Sample) bool { return s.Outcome == store.NotSent && s.Reason == store.NoInterface })
			for range 2 {
				ip(t, "netns", "add", name)
				there := true
				t.Cleanup(func() {
					if there {
						ip(t, "netns", "delete", name)
					}
				})
				ip(t, "link", "add", "eth1", "netns", name, "type", "veth", "peer", "name", "eth1", "netns", far.Name)
				ip(t, "-n", name, "address", "add", nearCIDRs[0], "dev", "eth1")
				ip(t, "-n", far.Name, "address", "add", farCIDRs[0], "dev", "eth1")
				ip(t, "-n", name, "link", "set", "eth1", "up")
				ip(t, "-n", far.Name, "link", "set", "eth1", "up")
				seen := len(r.taken())
				r.until("stamped", func(s store.Sample) bool { return len(r.taken()) > seen+10 && stamped(s) })
				// Nothing of ours keeps the namespace: its end of the pair goes, and so does the other.
				ip(t, "netns", "delete", name)
				there = false
				seen = len(r.taken())
				r.until("not sent again", func(s store.Sample) bool {
					return len(r.taken()) > seen+5 && s.Outcome == store.NotSent && s.Reason == store.NoInterface
				})
				await(t, "the end of the namespace", func() bool {
					out, err := exec.Command("ip", "-n", far.Name, "-o", "link", "show").CombinedOutput()
					if err != nil {
						t.Fatal(err)
					}
					return !strings.Contains(string(out), "eth1")
				})
			}
			samples := r.stop()
			p := r.Paths()[0]
			var counted uint64
			for _, n := range p.NotSent {
				counted += n
			}
			if p.Sent != p.Received+p.Lost+p.Unknown || p.Sent+counted != uint64(len(samples)) {
				t.Errorf("%d samples: %+v", len(samples), p.Counters)
			}
			for _, s := range samples {
				if s.Outcome == store.Unknown && s.Reason != store.InterfaceGone {
					t.Errorf("unknown for %s", s.Reason)
				}
			}
		})
	}
}
