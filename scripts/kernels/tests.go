// SPDX-License-Identifier: Apache-2.0

package main

// testRun is what a machine runs of one package.
type testRun struct {
	Package   string
	Run, Skip string // as of go test
}

// tests are those that are about the kernel.
var tests = []testRun{
	{Package: "bpf"},
	{Package: "netns"},
	{Package: "probe"},
}

// allowedSkips names the tests that may skip on these machines, as "<package> <test>", with the reason.
var allowedSkips = map[string]string{}
