// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	tcpTime = time.Second
	tcpPort = 5001
)

// tcpReceiver takes one connection at an ADDRESS, reads it to its end, and prints its part of a streamed. Sockets block, and
// the thread that uses them is the main one: the Go scheduler and its poller have no part in what is measured.
func tcpReceiver(args []string) error {
	address, fd, err := tcpSocket(args, 1)
	if err != nil {
		return err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, address),
		unix.Listen(fd, 1),
	)
	if err != nil {
		return err
	}
	conn, _, err := unix.Accept(fd)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<18)
	total, start := 0, time.Now()
	for {
		n, err := unix.Read(conn, buf)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		total += n
	}
	took := time.Since(start)
	cpu, err := processTime(os.Getpid())
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"Bits": 8 * total, "Time": took, "Receiver": cpu})
}

// tcpSender connects to an ADDRESS, once somebody listens, sends for tcpTime, and prints its part of a streamed.
func tcpSender(args []string) error {
	address, fd, err := tcpSocket(args, 0)
	if err != nil {
		return err
	}
	for end := time.Now().Add(startTimeout); ; time.Sleep(time.Millisecond) {
		err := unix.Connect(fd, address)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(end) {
			return err
		}
	}
	before, err := processTime(os.Getpid())
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<18)
	for end := time.Now().Add(tcpTime); time.Now().Before(end); {
		if _, err := unix.Write(fd, buf); err != nil {
			return err
		}
	}
	after, err := processTime(os.Getpid())
	if err != nil {
		return err
	}
	return errors.Join(unix.Close(fd), json.NewEncoder(os.Stdout).Encode(map[string]any{"Sender": after - before}))
}

// tcpSocket makes a socket, and keeps the thread to a CPU of its own if there are several.
func tcpSocket(args []string, cpu int) (*unix.SockaddrInet4, int, error) {
	if len(args) != 1 {
		return nil, -1, fmt.Errorf("expected ADDRESS, got %q", args)
	}
	a, err := netip.ParseAddr(args[0])
	if err != nil {
		return nil, -1, err
	}
	var set unix.CPUSet
	set.Set(cpu % runtime.NumCPU())
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, -1, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	return &unix.SockaddrInet4{Addr: a.As4(), Port: tcpPort}, fd, err
}
