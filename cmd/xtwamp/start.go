// SPDX-License-Identifier: Apache-2.0

//go:build !man

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	os.Exit(execute(ctx, systemEnv(), os.Args[1:]))
}
