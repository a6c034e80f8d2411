// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// ReflectVerdict is how the reflector left a packet. abi.h has what each one
// means.
type ReflectVerdict = reflectReflectVerdict

// The first ones, up to ReflectExtensionHeader, are never counted: that is
// traffic that is not ours, or cannot be told to be. The others up to
// ReflectAnswered were passed to the socket, those behind it dropped.
const (
	ReflectNotIP           = reflectReflectVerdictREFLECT_NOT_IP
	ReflectNotUDP          = reflectReflectVerdictREFLECT_NOT_UDP
	ReflectOtherPort       = reflectReflectVerdictREFLECT_OTHER_PORT
	ReflectOtherAddress    = reflectReflectVerdictREFLECT_OTHER_ADDRESS
	ReflectUnparsed        = reflectReflectVerdictREFLECT_UNPARSED
	ReflectIPOptions       = reflectReflectVerdictREFLECT_IP_OPTIONS
	ReflectFragment        = reflectReflectVerdictREFLECT_FRAGMENT
	ReflectExtensionHeader = reflectReflectVerdictREFLECT_EXTENSION_HEADER
	ReflectTagged          = reflectReflectVerdictREFLECT_TAGGED
	ReflectStale           = reflectReflectVerdictREFLECT_STALE
	ReflectMerged          = reflectReflectVerdictREFLECT_MERGED
	ReflectOtherHost       = reflectReflectVerdictREFLECT_OTHER_HOST
	ReflectOversize        = reflectReflectVerdictREFLECT_OVERSIZE
	ReflectBadLength       = reflectReflectVerdictREFLECT_BAD_LENGTH
	ReflectNoChecksum      = reflectReflectVerdictREFLECT_NO_CHECKSUM
	ReflectShort           = reflectReflectVerdictREFLECT_SHORT
	ReflectTLVs            = reflectReflectVerdictREFLECT_TLVS
	ReflectNotWritable     = reflectReflectVerdictREFLECT_NOT_WRITABLE
	ReflectAnswered        = reflectReflectVerdictREFLECT_ANSWERED
	ReflectOwnPort         = reflectReflectVerdictREFLECT_OWN_PORT
	ReflectBadAddress      = reflectReflectVerdictREFLECT_BAD_ADDRESS
	ReflectNotAllowed      = reflectReflectVerdictREFLECT_NOT_ALLOWED
	ReflectTooShort        = reflectReflectVerdictREFLECT_TOO_SHORT
	ReflectRateLimited     = reflectReflectVerdictREFLECT_RATE_LIMITED
	ReflectIsReply         = reflectReflectVerdictREFLECT_IS_REPLY
	ReflectSendFailed      = reflectReflectVerdictREFLECT_SEND_FAILED
	ReflectVerdictMax      = reflectReflectVerdictREFLECT__MAX // how many there are
)

var reflectVerdictNames = [ReflectVerdictMax]string{
	ReflectNotIP:           "not_ip",
	ReflectNotUDP:          "not_udp",
	ReflectOtherPort:       "other_port",
	ReflectOtherAddress:    "other_address",
	ReflectUnparsed:        "unparsed",
	ReflectIPOptions:       "ip_options",
	ReflectFragment:        "fragment",
	ReflectExtensionHeader: "extension_header",
	ReflectTagged:          "tagged",
	ReflectStale:           "stale",
	ReflectMerged:          "merged",
	ReflectOtherHost:       "other_host",
	ReflectOversize:        "oversize",
	ReflectBadLength:       "bad_length",
	ReflectNoChecksum:      "no_checksum",
	ReflectShort:           "short",
	ReflectTLVs:            "tlvs",
	ReflectNotWritable:     "not_writable",
	ReflectAnswered:        "answered",
	ReflectOwnPort:         "own_port",
	ReflectBadAddress:      "bad_address",
	ReflectNotAllowed:      "not_allowed",
	ReflectTooShort:        "too_short",
	ReflectRateLimited:     "rate_limited",
	ReflectIsReply:         "is_reply",
	ReflectSendFailed:      "send_failed",
}

func (v ReflectVerdict) String() string {
	if v >= ReflectVerdictMax {
		return fmt.Sprintf("verdict %d", uint32(v))
	}
	return reflectVerdictNames[v]
}
