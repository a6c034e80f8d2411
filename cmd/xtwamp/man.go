// SPDX-License-Identifier: Apache-2.0

//go:build man

package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra/doc"
)

// main writes the manual pages of all commands into a directory. It has the
// place of the program's, which so does not carry it:
//
//	go run -tags man ./cmd/xtwamp DIRECTORY
func main() {
	if err := writeManual(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func writeManual(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments, expected a directory", len(args))
	}
	header := &doc.GenManHeader{Section: "1", Source: "xtwamp " + version, Manual: "xtwamp"}
	if made, err := time.Parse(time.RFC3339, date); err == nil {
		header.Date = &made
	}
	root := newRootCommand(systemEnv())
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, header, args[0])
}
