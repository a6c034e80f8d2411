// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// In batches, only a ring that is half full wakes its reader.
func TestBatchedRingWakesAtHalf(t *testing.T) {
	const page = 4096 // smallest ring on the machines that this is tested on
	wake := func(batch bool) func(timeout time.Duration) bool {
		t.Helper()
		d := testLoad(t, Config{Slots: testSlots, Paths: 1, RingBytes: page, Batch: batch})
		epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(epoll) })
		ring := d.objects.Events.FD()
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, ring, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(ring)}); err != nil {
			t.Fatal(err)
		}
		return func(timeout time.Duration) bool {
			t.Helper()
			answer(t, d, 1)
			n, err := unix.EpollWait(epoll, make([]unix.EpollEvent, 1), int(timeout.Milliseconds()))
			if err != nil {
				t.Fatal(err)
			}
			return n > 0
		}
	}
	if !wake(false)(10 * time.Second) {
		t.Error("a reader that sleeps is not woken by an event")
	}
	quiet := (page/2 + EventBytes - 1) / EventBytes // as many are below half before the last of them
	batched := wake(true)
	for i := range quiet {
		if batched(0) {
			t.Fatalf("event %d of %d woke the reader", i+1, quiet)
		}
	}
	if !batched(10 * time.Second) {
		t.Error("a ring that is half full wakes nobody")
	}
}

func TestRunInBatches(t *testing.T) {
	const room = 4096 / 80 // events
	d := testLoad(t, Config{Slots: testSlots, Paths: 1, RingBytes: 4096, Batch: true})
	answer(t, d, 1)
	if err := d.Look(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	got := make(chan int, 10*room)
	go func() { ran <- d.Run(ctx, func(e []Event) { got <- len(e) }) }()
	if n := <-got; n != 1 {
		t.Errorf("%d events were left by who looked while nobody read, want 1", n)
	}
	for range 3 {
		// Whoever looks gets them...
		answer(t, d, 2)
		if err := d.Look(); err != nil || len(got) == 0 {
			t.Fatalf("%d batches after a look, %v", len(got), err)
		}
		// ...and a ring half full wakes the reader.
		for len(got) > 0 {
			<-got
		}
		for n := 0; n < room && len(got) == 0; n++ {
			answer(t, d, 1)
		}
		select {
		case <-got:
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was read")
		}
		for len(got) > 0 {
			<-got
		}
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}
