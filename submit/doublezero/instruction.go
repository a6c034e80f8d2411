// SPDX-License-Identifier: Apache-2.0

package doublezero

import "encoding/binary"

const (
	// MaxSamples is how many samples an account holds.
	MaxSamples = 35000

	// MaxSamplesPerWrite is how many samples fit into one transaction.
	MaxSamplesPerWrite = 239
)

// The telemetry program's instructions that are ours, by the first byte of their data.
const (
	opInitialize = 0
	opWrite      = 1
)

// release is the version and commit of the agent, as instructions and account headers carry them.
type release struct {
	version [16]byte
	commit  [8]byte
}

// newRelease cuts what is too long, which may be inside of a character.
func newRelease(version, commit string) (r release) {
	copy(r.version[:], version)
	copy(r.commit[:], commit)
	return r
}

func (r release) append(b []byte) []byte { return append(append(b, r.version[:]...), r.commit[:]...) }

// initializeData is the data of the instruction that makes an account.
func initializeData(epoch, intervalMicros uint64, r release) []byte {
	b := []byte{opInitialize}
	b = binary.LittleEndian.AppendUint64(b, epoch)
	b = binary.LittleEndian.AppendUint64(b, intervalMicros)
	return r.append(b)
}

// writeData is the data of the instruction that appends samples to an account, which takes its start from the first such one.
func writeData(startMicros uint64, samples []uint32, r release) []byte {
	b := []byte{opWrite}
	b = binary.LittleEndian.AppendUint64(b, startMicros)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(samples)))
	for _, s := range samples {
		b = binary.LittleEndian.AppendUint32(b, s)
	}
	return r.append(b)
}
