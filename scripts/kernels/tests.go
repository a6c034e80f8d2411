// SPDX-License-Identifier: Apache-2.0

package main

// testRun is what a machine runs of one package.
type testRun struct {
	Package   string
	Run, Skip string // as of go test
}

// tests are those that are about the kernel. Of probe, whose tests are many and slow on an emulated machine, they are those
// that go over each kind of device and each step of the ladder. What is about tcx by name is left to newer kernels.
var tests = []testRun{
	{
		Package: "bpf",
		// Properties of the programs, not of the kernel, and slow.
		Skip: "^Test(NoFlippedBitPasses|ReflectDecidesAsItsModel|ReflectNeverAmplifies|ReflectInXDPCompletesChecksums)$",
	},
	{
		Package: "netns",
		// It starts itself by "ip netns exec", which wants the files and commands of a whole host.
		Skip: "^TestNamesAreLookedUpAndDialedInThePlace$",
	},
	{
		Package: "probe",
		Run: "^Test(Ethernet|SocketReflector|VLAN|Bond|VLANOnBond|BondAnswersOnce|VRF|RolesInVRFs|Tunnels|TUN|XDPOnHardware" +
			"|XDPTimestamps|LadderOnVeth|Loopback|KernelWithoutRingBuffer|KernelReflectorComesBackToClsact" +
			"|InterfacesThatComeAndGo)$",
		// Where tcx is not, "auto" is clsact.
		Skip: "^TestLadderOnVeth$/^tcx$|^TestInterfacesThatComeAndGo$/^auto$",
	},
}

// allowedSkips names the tests that may skip on these machines, as "<package> <test>", with the reason.
var allowedSkips = map[string]string{
	"bpf TestProbeAndReplyOverALink/tcx":   "tcx came with Linux 6.6",
	"bpf TestHalfAnAttachmentIsUndone/tcx": "tcx came with Linux 6.6",
}

// withoutXDPContext are tests of bpf that give BPF_PROG_TEST_RUN a context for XDP, which is possible since Linux 5.15. Before
// that, XDP is tested over links alone.
const withoutXDPContext = "^TestReflect$/xdp$|^TestReflectEchoesAProbeOnce$/xdp_true$" +
	"|^TestReflect(KeepsNoChecksum|HidesNoDamage|LimitsEachSource|StrangersCostNothing|InXDPSendsNoSumOfZero|InXDPLeavesOtherDevicesAlone)$"
