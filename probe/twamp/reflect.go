// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"encoding/binary"
	"fmt"
)

// A Kind says how a reflector treats a request. One port answers all profiles, so the bytes alone decide.
type Kind uint8

const (
	// Short is not answered: under 14 bytes, or under 44 where requests must not be extended.
	Short Kind = iota
	// Echo is a DoubleZero request, 48 bytes and all zero from byte 12 on. It goes back unchanged.
	Echo
	// Answer gets the 44 bytes of a reply and, after them, the request's own bytes from 44 on, if any: padding, that is a
	// tail of under 4 bytes or one that begins with four zeros. A shorter request counts as if zeros filled it up to 44.
	Answer
	// Padding is a request whose tail is exactly one Extra Padding TLV. It is answered with the TLV's flag U cleared.
	Padding
	// TLVs has any other tail. It is answered with flags as RFC 8972 section 4 wants them.
	TLVs
	// Reflected is no request but the reply of another reflector. That would take an answer for a request, and so on for
	// ever, so there is none.
	Reflected
)

var kindNames = [...]string{
	Short: "short", Echo: "echo", Answer: "answer", Padding: "padding", TLVs: "tlvs", Reflected: "reflected",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Classify says how to treat a request. With extendShort those of 14 to 43 bytes get a longer answer than they are, the
// only ones that do. It does not look at the Error Estimate: one of 0 is answered like any other.
func Classify(req []byte, extendShort bool) Kind {
	switch {
	case len(req) < shortestRequest, len(req) < baseSize && !extendShort:
		return Short
	case isDoubleZero(req):
		return Echo
	case isReply(req):
		return Reflected
	case len(req) < baseSize, isPadding(req[baseSize:]):
		return Answer
	case isExtraPadding(req[baseSize:]):
		return Padding
	default:
		return TLVs
	}
}

// A Stamp is what the reflector adds to an answer.
type Stamp struct {
	Seq            uint32        // the sender's, if the reflector keeps no state
	Received, Sent Timestamp     // T2 and T3, in the format that Error names
	Error          ErrorEstimate // about both; one with Multiplier 0 goes out as unknown
	TTL            uint8         // TTL or hop limit of the request as it arrived; 0 = not known
}

// AppendReply appends the answer to req to dst and returns it; to a [Short] request or a [Reflected] one it appends nothing.
// k must be what [Classify] said about req. dst's free space must not overlap req; if it is as long as req and 44 bytes at
// least, nothing is allocated.
func AppendReply(dst, req []byte, k Kind, s Stamp) []byte {
	switch k {
	case Short, Reflected:
		return dst
	case Echo:
		return append(dst, req...)
	}
	var b [baseSize]byte
	binary.BigEndian.PutUint32(b[offSeq:], s.Seq)
	binary.BigEndian.PutUint64(b[offTime:], uint64(s.Sent))
	binary.BigEndian.PutUint16(b[offError:], uint16(s.Error.sent()))
	copy(b[offSSID:offReceived], req[offSSID:]) // fewer than two bytes if the request ends there
	binary.BigEndian.PutUint64(b[offReceived:], uint64(s.Received))
	copy(b[offSenderSeq:], req[:shortestRequest]) // sequence number, time and Error Estimate lie in the same order
	b[offSenderTTL] = s.TTL
	dst = append(dst, b[:]...)
	if len(req) > baseSize {
		dst = append(dst, req[baseSize:]...)
		reflectTLVs(dst[len(dst)-len(req)+baseSize:])
	}
	return dst
}

// longestDwell is the longest T3 - T2, in NTP's fractions of a second, by which a reply is told: 62.5 ms. In PTP's
// nanoseconds it is 268 ms.
const longestDwell = 1 << 28

// isReply reports whether a packet, by all appearance, is what a reflector sent: T2 is there, and T3 not long after it. In a
// request these bytes are zero (RFC 8762 section 4.2.1) or padding, which is zero or random (RFC 4656 section 4.1.2). The
// reply to a DoubleZero probe cannot be told from the probe.
func isReply(b []byte) bool {
	if len(b) < baseSize {
		return false
	}
	received, sent := binary.BigEndian.Uint64(b[offReceived:]), binary.BigEndian.Uint64(b[offTime:])
	return received != 0 && sent-received < longestDwell // as unsigned numbers: not before it either
}
