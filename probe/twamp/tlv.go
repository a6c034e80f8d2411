// SPDX-License-Identifier: Apache-2.0

package twamp

import "encoding/binary"

// A TLV of RFC 8972 section 4 is flags (1 byte), type (1), length of the value (2), value.
const (
	tlvHeader = 4

	flagUnrecognized = 0x80 // U: the sender sets it, a reflector that knows the type clears it
	flagMalformed    = 0x40 // M
	flagIntegrity    = 0x20 // I: an HMAC TLV did not match

	typeExtraPadding = 1
)

// putExtraPadding makes one Extra Padding TLV of all of tail, which is zero. Too short a tail stays as it is.
func putExtraPadding(tail []byte) {
	if len(tail) < tlvHeader {
		return
	}
	tail[0] = flagUnrecognized
	tail[1] = typeExtraPadding
	binary.BigEndian.PutUint16(tail[2:], uint16(len(tail)-tlvHeader))
}

// isPadding reports whether no TLV begins at tail. Four zeros are no TLV, though they could be read as an empty one of type
// 0: that type is reserved, every sender sets U, and plain zeros are what TWAMP-Light pads with.
func isPadding(tail []byte) bool {
	return len(tail) < tlvHeader || [tlvHeader]byte(tail) == [tlvHeader]byte{}
}

// tlvSize returns the size of the TLV at tail with its header, which may be more than there is.
func tlvSize(tail []byte) int {
	return tlvHeader + int(binary.BigEndian.Uint16(tail[2:]))
}

// isExtraPadding reports whether tail, which is not padding, is exactly one Extra Padding TLV.
func isExtraPadding(tail []byte) bool {
	return tail[1] == typeExtraPadding && tlvSize(tail) == len(tail)
}

// reflectTLVs sets the flags of the TLVs in an answer's tail, which so far is the request's, and leaves all else alone.
// Extra Padding is the only type known. U, M and I are the reflector's to say, whatever came in them; the reserved flags
// are echoed. A length that runs past the packet sets M and ends the walk. As HMAC TLVs are not verified, none can fail.
func reflectTLVs(tail []byte) {
	for !isPadding(tail) {
		tail[0] &^= flagUnrecognized | flagMalformed | flagIntegrity
		if tail[1] != typeExtraPadding {
			tail[0] |= flagUnrecognized
		}
		n := tlvSize(tail)
		if n > len(tail) {
			tail[0] |= flagMalformed
			return
		}
		tail = tail[n:]
	}
}
