// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrNotSamples means that an account's data is not that of samples which a device took.
var ErrNotSamples = errors.New("not a device's samples account")

// The layouts of a samples account, by the first byte of its data. V0 has the bump behind it and is otherwise the same; the program
// does not write to it any more.
const (
	typeSamplesV0 = 1
	typeSamplesV1 = 3
)

const (
	headerSizeV1 = 349
	headerSizeV0 = headerSizeV1 + 1

	// maxHeaderSize bytes from the start of an account are enough for its header.
	maxHeaderSize = headerSizeV0
)

// Header is what stands before the samples of an account. Sample i was taken StartMicros + i x IntervalMicros after 1970.
type Header struct {
	Version uint8 // layout: 0 or 1
	Epoch   uint64

	Agent          Pubkey // who alone may write; set when the account is made
	Origin, Target Pubkey // devices
	OriginLocation Pubkey
	TargetLocation Pubkey
	Link           Pubkey

	IntervalMicros uint64
	StartMicros    uint64 // set by the first write, until then 0
	NextIndex      uint32 // of the next sample: how many there are, at most MaxSamples

	AgentVersion [16]byte // of the last write that named one; ends with zeros
	AgentCommit  [8]byte
}

// DecodeHeader reads the header of an account of either layout from the start of its data. Data of another kind gives ErrNotSamples;
// any other error means that the data is damaged.
func DecodeHeader(data []byte) (Header, error) {
	h, _, err := decodeHeader(data)
	return h, err
}

// decodeHeader also returns what follows.
func decodeHeader(data []byte) (h Header, rest []byte, err error) {
	if len(data) == 0 {
		return Header{}, nil, fmt.Errorf("account without data: %w", ErrNotSamples)
	}
	size, skip := headerSizeV1, 1
	switch data[0] {
	case typeSamplesV0:
		size, skip = headerSizeV0, 2
	case typeSamplesV1:
		h.Version = 1
	default:
		return Header{}, nil, fmt.Errorf("account type %d: %w", data[0], ErrNotSamples)
	}
	if len(data) < size {
		return Header{}, nil, fmt.Errorf("account data cut: %d of the header's %d bytes", len(data), size)
	}
	r := reader(data[skip:size])
	h.Epoch = r.uint64()
	for _, k := range []*Pubkey{&h.Agent, &h.Origin, &h.Target, &h.OriginLocation, &h.TargetLocation, &h.Link} {
		copy(k[:], r.take(len(k)))
	}
	h.IntervalMicros = r.uint64()
	h.StartMicros = r.uint64()
	h.NextIndex = binary.LittleEndian.Uint32(r.take(4))
	copy(h.AgentVersion[:], r.take(len(h.AgentVersion)))
	copy(h.AgentCommit[:], r.take(len(h.AgentCommit)))
	if h.NextIndex > MaxSamples {
		return Header{}, nil, fmt.Errorf("account of %d samples: expected at most %d", h.NextIndex, MaxSamples)
	}
	return h, data[size:], nil
}

// DecodeSamples reads a whole account, with the errors of [DecodeHeader]. What follows the last sample that the header counts is
// ignored, as the ledger's other readers do.
func DecodeSamples(data []byte) (Header, []uint32, error) {
	h, rest, err := decodeHeader(data)
	if err != nil {
		return Header{}, nil, err
	}
	if len(rest)/4 < int(h.NextIndex) {
		return Header{}, nil, fmt.Errorf("account data cut: %d of %d samples", len(rest)/4, h.NextIndex)
	}
	samples := make([]uint32, h.NextIndex)
	for i := range samples {
		samples[i] = binary.LittleEndian.Uint32(rest[4*i:])
	}
	return h, samples, nil
}

// reader takes little-endian fields from the front of bytes that are known to be enough.
type reader []byte

func (r *reader) take(n int) []byte {
	b := (*r)[:n]
	*r = (*r)[n:]
	return b
}

func (r *reader) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }
