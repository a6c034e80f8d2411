// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits of the telemetry program.
const (
	MaxSamples         = 35_000
	maxSamplesPerWrite = 2560 // what an account may grow by in one instruction, 10,240 bytes

	samplesHeader = 349
	samplesType   = 3 // first byte of an account of this layout
)

// Error codes of the telemetry program.
const (
	codeAgentNotAuthorized  = 1001
	codeDeviceStatus        = 1002
	codeLinkStatus          = 1003
	codeLinkEnds            = 1004
	codeAccountFull         = 1006
	codeAccountType         = 1007
	codeAccountOwner        = 1008
	codeAddress             = 1009
	codeAccountExists       = 1010
	codeAccountDoesNotExist = 1011
	codeInterval            = 1012
	codeTooManySamples      = 1013
	codeNoSamples           = 1017
)

// Offsets in the header of a samples account.
const (
	offEpoch          = 1
	offAgent          = 9
	offOrigin         = 41
	offTarget         = 73
	offOriginLocation = 105
	offTargetLocation = 137
	offLink           = 169
	offInterval       = 201
	offStart          = 209
	offNext           = 217
	offVersion        = 221
	offCommit         = 237
)

// Samples is the content of a samples account. Sample i was taken at StartMicros + i x IntervalMicros; 0 means no data.
type Samples struct {
	Epoch          uint64
	Agent          Pubkey
	Origin         Pubkey
	Target         Pubkey
	OriginLocation Pubkey
	TargetLocation Pubkey
	Link           Pubkey
	IntervalMicros uint64
	StartMicros    uint64 // 0 until the first write
	AgentVersion   [16]byte
	AgentCommit    [8]byte
	Values         []uint32 // RTT in microseconds
}

// Encode returns the account's bytes.
func (s Samples) Encode() []byte {
	b := make([]byte, samplesHeader, samplesHeader+4*len(s.Values))
	b[0] = samplesType
	le := binary.LittleEndian
	le.PutUint64(b[offEpoch:], s.Epoch)
	copy(b[offAgent:], s.Agent[:])
	copy(b[offOrigin:], s.Origin[:])
	copy(b[offTarget:], s.Target[:])
	copy(b[offOriginLocation:], s.OriginLocation[:])
	copy(b[offTargetLocation:], s.TargetLocation[:])
	copy(b[offLink:], s.Link[:])
	le.PutUint64(b[offInterval:], s.IntervalMicros)
	le.PutUint64(b[offStart:], s.StartMicros)
	le.PutUint32(b[offNext:], uint32(len(s.Values)))
	copy(b[offVersion:], s.AgentVersion[:])
	copy(b[offCommit:], s.AgentCommit[:])
	for _, v := range s.Values {
		b = le.AppendUint32(b, v)
	}
	return b
}

// DecodeSamples reads the bytes of a samples account.
func DecodeSamples(b []byte) (Samples, error) {
	if len(b) < samplesHeader || b[0] != samplesType {
		return Samples{}, errors.New("no samples account")
	}
	le := binary.LittleEndian
	next := int(le.Uint32(b[offNext:]))
	if len(b) != samplesHeader+4*next {
		return Samples{}, fmt.Errorf("samples account of %d bytes for %d samples", len(b), next)
	}
	s := Samples{
		Epoch:          le.Uint64(b[offEpoch:]),
		Agent:          Pubkey(b[offAgent:][:32]),
		Origin:         Pubkey(b[offOrigin:][:32]),
		Target:         Pubkey(b[offTarget:][:32]),
		OriginLocation: Pubkey(b[offOriginLocation:][:32]),
		TargetLocation: Pubkey(b[offTargetLocation:][:32]),
		Link:           Pubkey(b[offLink:][:32]),
		IntervalMicros: le.Uint64(b[offInterval:]),
		StartMicros:    le.Uint64(b[offStart:]),
		AgentVersion:   [16]byte(b[offVersion:][:16]),
		AgentCommit:    [8]byte(b[offCommit:][:8]),
		Values:         make([]uint32, next),
	}
	for i := range s.Values {
		s.Values[i] = le.Uint32(b[samplesHeader+4*i:])
	}
	return s, nil
}

// telemetry runs one instruction of the program.
func (x *execution) telemetry(in instruction) *txError {
	fields := instructionData(in.data)
	switch kind := fields.u8(); {
	case fields.bad:
		return instructionError("InvalidInstructionData")
	case kind == 0:
		return x.initialize(in, fields)
	case kind == 1:
		return x.write(in, fields)
	}
	return instructionError("InvalidInstructionData")
}

// initialize creates a samples account. The order of its checks is the program's.
func (x *execution) initialize(in instruction, f *fields) *txError {
	epoch, interval := f.u64(), f.u64()
	version, commit := [16]byte(f.take(16)), [8]byte(f.take(8))
	if f.bad {
		return instructionError("InvalidInstructionData")
	}
	if len(in.accounts) < 6 {
		return instructionError("NotEnoughAccountKeys")
	}
	account, agent := in.accounts[0], in.accounts[1]
	originKey, targetKey, linkKey := in.accounts[2].key, in.accounts[3].key, in.accounts[4].key
	origin, target, link := x.load(originKey), x.load(targetKey), x.load(linkKey)

	switch {
	case interval == 0:
		return customError(codeInterval)
	case !agent.signer:
		return instructionError("MissingRequiredSignature")
	case origin.Owner != x.serviceability || target.Owner != x.serviceability || link.Owner != x.serviceability:
		return instructionError("IncorrectProgramId")
	}
	from, err1 := decodeDevice(origin.Data)
	to, err2 := decodeDevice(target.Data)
	between, err3 := decodeLink(link.Data)
	if err1 != nil || err2 != nil || err3 != nil {
		return instructionError("InvalidAccountData")
	}
	switch {
	case !deviceTakesSamples(from.Status):
		return customError(codeDeviceStatus)
	case from.Publisher != agent.key:
		return customError(codeAgentNotAuthorized)
	case !deviceTakesSamples(to.Status):
		return customError(codeDeviceStatus)
	case !linkTakesSamples(between.Status):
		return customError(codeLinkStatus)
	case (between.SideA != originKey || between.SideZ != targetKey) && (between.SideA != targetKey || between.SideZ != originKey):
		return customError(codeLinkEnds)
	case account.key != samplesAddress(x.program, originKey, targetKey, linkKey, epoch):
		return customError(codeAddress)
	case len(x.load(account.key).Data) > 0:
		return customError(codeAccountExists)
	}

	a := x.load(account.key)
	a.Owner = x.program
	a.Data = Samples{
		Epoch: epoch, Agent: agent.key, Origin: originKey, Target: targetKey, OriginLocation: from.Location, TargetLocation: to.Location,
		Link: linkKey, IntervalMicros: interval, AgentVersion: version, AgentCommit: commit,
	}.Encode()
	return x.store(account, a, agent, in.accounts[5])
}

// write appends samples to an account. The order of its checks is the program's.
func (x *execution) write(in instruction, f *fields) *txError {
	start, values := f.u64(), f.u32s()
	version, commit := f.take(16), f.take(8)
	if f.bad {
		return instructionError("InvalidInstructionData")
	}
	if len(in.accounts) < 3 {
		return instructionError("NotEnoughAccountKeys")
	}
	account, agent := in.accounts[0], in.accounts[1]
	a := x.load(account.key)
	switch {
	case len(values) == 0:
		return customError(codeNoSamples)
	case !agent.signer:
		return instructionError("MissingRequiredSignature")
	case len(a.Data) == 0:
		return customError(codeAccountDoesNotExist)
	case a.Owner != x.program:
		return customError(codeAccountOwner)
	case len(a.Data) < samplesHeader:
		return instructionError("InvalidAccountData")
	case a.Data[0] != samplesType:
		return customError(codeAccountType)
	case Pubkey(a.Data[offAgent:][:32]) != agent.key:
		return customError(codeAgentNotAuthorized)
	}
	le := binary.LittleEndian
	next := int(le.Uint32(a.Data[offNext:]))
	switch {
	case next+len(values) > MaxSamples:
		return customError(codeAccountFull)
	case len(values) > maxSamplesPerWrite:
		return customError(codeTooManySamples)
	}

	a.Data = append(make([]byte, 0, len(a.Data)+4*len(values)), a.Data...)
	for _, v := range values {
		a.Data = le.AppendUint32(a.Data, v)
	}
	le.PutUint32(a.Data[offNext:], uint32(next+len(values)))
	if le.Uint64(a.Data[offStart:]) == 0 {
		le.PutUint64(a.Data[offStart:], start)
	}
	if [16]byte(version) != [16]byte{} {
		copy(a.Data[offVersion:], version)
	}
	if [8]byte(commit) != [8]byte{} {
		copy(a.Data[offCommit:], commit)
	}
	return x.store(account, a, agent, in.accounts[2])
}

// fields reads instruction data one field after another. Fields behind its end are zero, as programs read them that have grown
// fields over time; one that the end cuts in two makes the data bad.
type fields struct {
	rest []byte
	bad  bool
}

func instructionData(b []byte) *fields { return &fields{rest: b, bad: len(b) == 0} }

func (f *fields) take(n int) []byte {
	switch {
	case len(f.rest) == 0:
		return make([]byte, n)
	case len(f.rest) < n:
		f.bad, f.rest = true, nil
		return make([]byte, n)
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) u8() uint8   { return f.take(1)[0] }
func (f *fields) u32() uint32 { return binary.LittleEndian.Uint32(f.take(4)) }
func (f *fields) u64() uint64 { return binary.LittleEndian.Uint64(f.take(8)) }

func (f *fields) u32s() []uint32 {
	n := int(f.u32())
	if n > len(f.rest)/4 {
		f.bad = true
		return nil
	}
	v := make([]uint32, n)
	for i := range v {
		v[i] = f.u32()
	}
	return v
}
