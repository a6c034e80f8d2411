// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// Verdict is how the programs left a packet. abi.h has what each one means.
type Verdict = xtwampVerdict

// The first four, traffic that is not ours, are never counted: that would cost
// more than all else that is done to such a packet.
const (
	VerdictNotIP             = xtwampVerdictVERDICT_NOT_IP
	VerdictNotUDP            = xtwampVerdictVERDICT_NOT_UDP
	VerdictOtherPort         = xtwampVerdictVERDICT_OTHER_PORT
	VerdictOtherPath         = xtwampVerdictVERDICT_OTHER_PATH
	VerdictUnparsed          = xtwampVerdictVERDICT_UNPARSED
	VerdictIPOptions         = xtwampVerdictVERDICT_IP_OPTIONS
	VerdictFragment          = xtwampVerdictVERDICT_FRAGMENT
	VerdictExtensionHeader   = xtwampVerdictVERDICT_EXTENSION_HEADER
	VerdictTagged            = xtwampVerdictVERDICT_TAGGED
	VerdictMerged            = xtwampVerdictVERDICT_MERGED
	VerdictBadLength         = xtwampVerdictVERDICT_BAD_LENGTH
	VerdictScattered         = xtwampVerdictVERDICT_SCATTERED
	VerdictProbeSent         = xtwampVerdictVERDICT_PROBE_SENT
	VerdictProbeSeen         = xtwampVerdictVERDICT_PROBE_SEEN
	VerdictNoSlot            = xtwampVerdictVERDICT_NO_SLOT
	VerdictBadFormat         = xtwampVerdictVERDICT_BAD_FORMAT
	VerdictUnmatched         = xtwampVerdictVERDICT_UNMATCHED
	VerdictWrongSSID         = xtwampVerdictVERDICT_WRONG_SSID
	VerdictWrongInterface    = xtwampVerdictVERDICT_WRONG_INTERFACE
	VerdictOversize          = xtwampVerdictVERDICT_OVERSIZE
	VerdictBadChecksum       = xtwampVerdictVERDICT_BAD_CHECKSUM
	VerdictAnswered          = xtwampVerdictVERDICT_ANSWERED
	VerdictRingFull          = xtwampVerdictVERDICT_RING_FULL
	VerdictDuplicate         = xtwampVerdictVERDICT_DUPLICATE
	VerdictDuplicateRingFull = xtwampVerdictVERDICT_DUPLICATE_RING_FULL
	VerdictMax               = xtwampVerdictVERDICT__MAX // how many there are
)

var verdictNames = [VerdictMax]string{
	VerdictNotIP:             "not_ip",
	VerdictNotUDP:            "not_udp",
	VerdictOtherPort:         "other_port",
	VerdictOtherPath:         "other_path",
	VerdictUnparsed:          "unparsed",
	VerdictIPOptions:         "ip_options",
	VerdictFragment:          "fragment",
	VerdictExtensionHeader:   "extension_header",
	VerdictTagged:            "tagged",
	VerdictMerged:            "merged",
	VerdictBadLength:         "bad_length",
	VerdictScattered:         "scattered",
	VerdictProbeSent:         "probe_sent",
	VerdictProbeSeen:         "probe_seen",
	VerdictNoSlot:            "no_slot",
	VerdictBadFormat:         "bad_format",
	VerdictUnmatched:         "unmatched",
	VerdictWrongSSID:         "wrong_ssid",
	VerdictWrongInterface:    "wrong_interface",
	VerdictOversize:          "oversize",
	VerdictBadChecksum:       "bad_checksum",
	VerdictAnswered:          "answered",
	VerdictRingFull:          "ring_full",
	VerdictDuplicate:         "duplicate",
	VerdictDuplicateRingFull: "duplicate_ring_full",
}

func (v Verdict) String() string {
	if v >= VerdictMax {
		return fmt.Sprintf("verdict %d", uint32(v))
	}
	return verdictNames[v]
}

// Counters returns how many packets left by each verdict since Load.
func (d *Datapath) Counters() ([VerdictMax]uint64, error) {
	var sums [VerdictMax]uint64
	var perCPU []uint64
	for v := range VerdictMax {
		if err := d.objects.Counters.Lookup(v, &perCPU); err != nil {
			return sums, fmt.Errorf("read counters: %w", err)
		}
		for _, n := range perCPU {
			sums[v] += n
		}
	}
	return sums, nil
}
