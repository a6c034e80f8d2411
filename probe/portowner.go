// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// portOwner names a process that has a UDP socket on port in the current
// thread's namespace: "twampd (pid 42)" and 42, or "" and 0 if none can be seen.
func portOwner(port uint16) (owner string, pid int) {
	var inodes []string
	for _, table := range []string{"udp", "udp6"} {
		inodes = append(inodes, socketInodes("/proc/thread-self/net/"+table, port)...)
	}
	if len(inodes) == 0 {
		return "", 0
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		link, err := os.Readlink(file)
		if err != nil || !strings.HasPrefix(link, "socket:[") {
			continue
		}
		if slices.Contains(inodes, strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2]) // digits, as it was looked for
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(name)), pid), pid
		}
	}
	return "", 0
}

// socketInodes lists the sockets bound to port in a table like
// /proc/net/udp, whose second column is local address:port in hexadecimal
// and whose tenth is the inode.
func socketInodes(table string, port uint16) (inodes []string) {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		fields := strings.Fields(scan.Text())
		if len(fields) < 10 {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		if local, err := strconv.ParseUint(hex, 16, 16); err == nil && uint16(local) == port {
			inodes = append(inodes, fields[9])
		}
	}
	return inodes
}
