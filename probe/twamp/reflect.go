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
)

var kindNames = [...]string{Short: "short", Echo: "echo", Answer: "answer", Padding: "padding", TLVs: "tlvs"}

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

// AppendReply appends the answer to req to dst and returns it; to a [Short] request it appends nothing. k must be what
// [Classify] said about req. dst's free space must not overlap req; if it is as long as req and 44 bytes at least, nothing
// is allocated.
func AppendReply(dst, req []byte, k Kind, s Stamp) []byte {
	switch k {
	case Short:
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
