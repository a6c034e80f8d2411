// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xtwamp/xtwamp/netns/netnstest"
	"github.com/xtwamp/xtwamp/probe/target"
)

// TestAnotherReaderOfTheWire lets tshark read probes and replies off the link.
// Probe and reply are equally long: case 22.
func TestAnotherReaderOfTheWire(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("XTWAMP_REQUIRE_ROOT") == "1" {
			t.Fatal(err)
		}
		t.Skip("needs tshark")
	}
	near, far := relayed(t, func(r *netnstest.Relay, f netnstest.Frame) { r.Send(f.Direction, f.Data, 0) })
	reflectIn(t, far, nil)
	const probes = 3
	capture := near.Command("tshark", "-l", "-n", "-i", "eth1", "-f", "udp port 862",
		"-d", "udp.port==862,twamp.test", "-o", "udp.check_checksum:TRUE", "-T", "fields",
		"-e", "udp.dstport", "-e", "udp.length", "-e", "udp.checksum.status", "-e", "ip.dsfield.dscp", "-e", "ip.ttl",
		"-e", "twamp.test.seq_number", "-e", "twamp.test.sender_seq_number", "-e", "twamp.test.sender_ttl",
		"-e", "twamp.test.error_estimate.multiplier")
	stdout, err := capture.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := capture.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	for scan := bufio.NewScanner(stderr); !strings.Contains(scan.Text(), "Capturing on"); {
		if !scan.Scan() {
			t.Fatal("tshark does not capture")
		}
	}
	lines := make(chan []string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			lines <- strings.Split(scan.Text(), "\t")
		}
	}()
	// tshark opens the interface a moment after it says so: go on until it has seen that many probes with their replies.
	r := begin(t, near, nil, to(farAddr, func(t *target.Target) { t.Interval, t.DSCP = 20*ms, 46 }))
	defer r.stop()
	sent := make(map[string][]string) // by sequence number
	var first uint64
	for seen := 0; seen < probes; {
		var line []string
		select {
		case line = <-lines:
		case <-time.After(30 * time.Second):
			t.Fatal("tshark saw no packet within 30s")
		}
		if len(line) != 9 {
			t.Fatalf("tshark printed %q", line)
		}
		const good = "1" // checksum status
		if line[8] == "0" {
			t.Errorf("Error Estimate multiplier 0 in %q, want none", line)
		}
		if line[0] == "862" {
			seq, err := strconv.ParseUint(line[5], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			if len(sent) == 0 {
				first = seq
			}
			want := strconv.FormatUint(uint64(uint32(first+uint64(len(sent)))), 10)
			// Of any packet of 41 bytes or more tshark thinks that it is a reply.
			if diff := cmp.Diff([]string{"862", "52", good, "46", "255", want, "0", "0"}, line[:8]); diff != "" {
				t.Errorf("probe %d (-want +got):\n%s", len(sent), diff)
			}
			sent[line[5]] = line
			continue
		}
		if sent[line[6]] == nil {
			continue // the reply to one sent before
		}
		if diff := cmp.Diff([]string{"52", good, "46", "255", line[6], line[6], "255"}, line[1:8]); diff != "" {
			t.Errorf("reply %d (-want +got):\n%s", seen, diff)
		}
		seen++
	}
	if err := capture.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	go func() { // until tshark ends
		for range lines {
		}
	}()
	if err := capture.Wait(); err != nil {
		t.Errorf("tshark: %v", err)
	}
}
