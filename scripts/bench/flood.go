// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	floodTime = 3 * time.Second
	// floodRate is in requests per second, in bursts of what is due each millisecond. It is below what the socket reflector
	// can do on one CPU, and bursts are to its advantage: it is woken once for several.
	floodRate = 50_000
	// floodSources share the requests, so that each stays below the reflector's rate limit.
	floodSources = 200
)

// floodPrefix has the addresses that requests on a link come from.
func floodPrefix(n int) string { return fmt.Sprintf("198.19.%d.0/24", n) }

// flooded is what a flood sent and got, and what the machine did meanwhile.
type flooded struct {
	Sent, Answered int
	Busy           time.Duration // all CPUs
	Own            time.Duration // the reflector and the flood themselves
	Idle           float64       // share of the machine
}

func (f flooded) machineTime() time.Duration { return f.Busy }
func (f flooded) ownTime() time.Duration     { return f.Own }
func (f flooded) answeredShare() float64     { return float64(f.Answered) / float64(f.Sent) }

// flood sends requests TO an address from the addresses of a PREFIX, none of which is local, so that nobody here takes the
// answers: it counts what comes in on an INTERFACE. The reflector's process is PID. It prints a flooded.
func flood(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("expected TO PREFIX INTERFACE PID, got %q", args)
	}
	reflector, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	sockets, err := floodSockets(args[0], args[1])
	if err != nil {
		return err
	}
	request := make([]byte, 44) // STAMP, RFC 8762 section 4.2.1: the rest may be anything
	request[3] = 1

	gotBefore, err := received(args[2])
	if err != nil {
		return err
	}
	ownBefore, err := processTime(os.Getpid(), reflector)
	if err != nil {
		return err
	}
	before, err := readCPU()
	if err != nil {
		return err
	}
	var f flooded
	for elapsed := time.Duration(0); elapsed < floodTime; time.Sleep(time.Millisecond) {
		elapsed = min(time.Since(before.at), floodTime)
		for due := int(elapsed.Seconds() * floodRate); f.Sent < due; f.Sent++ {
			if err := unix.Send(sockets[f.Sent%len(sockets)], request, 0); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
	}
	after, err := readCPU() // a millisecond after the last request: the answers are there
	if err != nil {
		return err
	}
	own, err := processTime(os.Getpid(), reflector)
	if err != nil {
		return err
	}
	got, err := received(args[2])
	if err != nil {
		return err
	}
	f.Answered, f.Own = got-gotBefore, own-ownBefore
	f.Busy, f.Idle = after.busy(before), 1-after.busyShare(before)
	return json.NewEncoder(os.Stdout).Encode(f)
}

// floodSockets opens a socket for each source.
func floodSockets(to, prefix string) (sockets []int, err error) {
	reflector, err := netip.ParseAddr(to)
	if err != nil {
		return nil, err
	}
	sources, err := netip.ParsePrefix(prefix)
	if err != nil {
		return nil, err
	}
	source := sources.Addr()
	for range floodSources {
		source = source.Next()
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1), // may send from any address
			unix.Bind(fd, &unix.SockaddrInet4{Addr: source.As4()}),
			unix.Connect(fd, &unix.SockaddrInet4{Addr: reflector.As4(), Port: 862}),
		)
		if err != nil {
			return nil, fmt.Errorf("socket from %s to %s: %w", source, reflector, err)
		}
		sockets = append(sockets, fd)
	}
	return sockets, nil
}

// received counts the packets that an interface of the process's namespace has received.
func received(name string) (int, error) {
	text, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		device, counters, _ := strings.Cut(strings.TrimSpace(line), ":")
		if fields := strings.Fields(counters); device == name && len(fields) > 1 { // bytes, packets, ...
			return strconv.Atoi(fields[1])
		}
	}
	return 0, fmt.Errorf("no interface %s", name)
}
