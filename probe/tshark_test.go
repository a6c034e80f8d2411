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
	capture := near.Command("tshark", "-l", "-n", "-i", "eth1", "-f", "udp port 862", "-c", strconv.Itoa(2*probes),
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
	read := func() []string {
		select {
		case line, ok := <-lines:
			if ok && len(line) == 9 {
				return line
			}
			t.Fatalf("tshark printed %q", line)
		case <-time.After(30 * time.Second):
			t.Fatal("tshark saw no packet within 30s")
		}
		return nil
	}
	// tshark opens the interface a moment after it says so: go on until all
	// that it was asked for has come.
	r := begin(t, near, nil, to(farAddr, func(t *target.Target) { t.Interval, t.DSCP = 20*ms, 46 }))
	defer r.stop()
	var first uint64
	for i := range probes {
		probe := read()
		if probe[0] != "862" { // the reply to one sent before
			probe = read()
		}
		reply := read()
		seq, err := strconv.ParseUint(probe[5], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = seq
		}
		want := strconv.FormatUint(uint64(uint32(first+uint64(i))), 10)
		const good = "1" // checksum status
		if probe[8] == "0" || reply[8] == "0" {
			t.Errorf("Error Estimate multipliers %s and %s, want none 0", probe[8], reply[8])
		}
		// Of any packet of 41 bytes or more tshark thinks that it is a reply.
		if diff := cmp.Diff([]string{"862", "52", good, "46", "255", want, "0", "0"}, probe[:8]); diff != "" {
			t.Errorf("probe %d (-want +got):\n%s", i, diff)
		}
		if diff := cmp.Diff([]string{"52", good, "46", "255", want, want, "255"}, reply[1:8]); diff != "" {
			t.Errorf("reply %d (-want +got):\n%s", i, diff)
		}
	}
	go func() { // until tshark has what it was asked for and ends
		for range lines {
		}
	}()
	if err := capture.Wait(); err != nil {
		t.Errorf("tshark: %v", err)
	}
}
