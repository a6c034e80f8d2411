// SPDX-License-Identifier: Apache-2.0

package twamp

import (
	"encoding/binary"
	"fmt"
)

// Where the fields are. RFC 5357 section 4.2.1 and RFC 8762 section 4.3.1 agree on all of them; the SSID is from RFC 8972.
// A request ends with the SSID; what follows in it, up to baseSize, is zero.
//
//	 0              4                      12      14      16                     24
//	+--------------+----------------------+-------+-------+----------------------+
//	| Sequence     | Timestamp            | Error | SSID  | Receive Timestamp    |
//	+--------------+----------------------+-------+-------+---+------------------+
//	| Sender Seq.  | Sender Timestamp     | Error | 0     |TTL| 0 0 0 | TLVs ...
//	+--------------+----------------------+-------+-------+---+------------------+
//	 24             28                     36      38      40  41      44
const (
	offSeq         = 0
	offTime        = 4
	offError       = 12
	offSSID        = 14
	offReceived    = 16
	offSenderSeq   = 24
	offSenderTime  = 28
	offSenderError = 36
	offSenderTTL   = 40

	shortestRequest = offError + 2      // TWAMP-Light without padding
	shortestReply   = offSenderTime + 8 // what is needed to tell which probe it answers; seen in the wild: 38
	baseSize        = 44                // STAMP without TLVs
	doubleZeroSize  = 48                // everything from offError on is zero
	largestPacket   = 1<<16 - 1 - 8     // what the length field of UDP can say
)

// A Request is what a sender puts into a test packet.
type Request struct {
	Seq   uint32
	Time  Timestamp     // T1, in the format that Error names; in profile DoubleZero always NTP
	Error ErrorEstimate // not in profile DoubleZero
	SSID  uint16        // session identifier; 0 = none; only in profile STAMP
}

// PutRequest fills all of buf, whose length is the size of the packet, with a request. Fields that the profile does not
// have are left out. An Error with Multiplier 0, which must not be sent, goes out as unknown.
//
// What a packet is longer than [Profile.MinSize] is one Extra Padding TLV in profile STAMP if there is room for its header,
// else zeros. The error is [ErrSize] for a size that the profile or UDP does not have.
func PutRequest(buf []byte, p Profile, r Request) error {
	if len(buf) < p.MinSize() || len(buf) > largestPacket || p == DoubleZero && len(buf) != doubleZeroSize {
		return fmt.Errorf("%w: %d bytes in profile %s", ErrSize, len(buf), p)
	}
	clear(buf)
	binary.BigEndian.PutUint32(buf[offSeq:], r.Seq)
	binary.BigEndian.PutUint64(buf[offTime:], uint64(r.Time))
	if p == DoubleZero {
		return nil
	}
	binary.BigEndian.PutUint16(buf[offError:], uint16(r.Error.sent()))
	if p == STAMP {
		binary.BigEndian.PutUint16(buf[offSSID:], r.SSID)
		putExtraPadding(buf[baseSize:])
	}
	return nil
}

// ParseRequest reads a request, in profiles STAMP and TWAMPLight of 14 bytes or more. The error is [ErrSize] or, in
// profile DoubleZero, [ErrPadding].
func ParseRequest(b []byte, p Profile) (Request, error) {
	if p == DoubleZero {
		return parseDoubleZero(b)
	}
	if len(b) < shortestRequest {
		return Request{}, ErrSize
	}
	r := Request{
		Seq:   binary.BigEndian.Uint32(b[offSeq:]),
		Time:  Timestamp(binary.BigEndian.Uint64(b[offTime:])),
		Error: ErrorEstimate(binary.BigEndian.Uint16(b[offError:])),
	}
	if p == STAMP && len(b) >= offSSID+2 {
		r.SSID = binary.BigEndian.Uint16(b[offSSID:])
	}
	return r, nil
}

// A Reply is what comes back. A DoubleZero reply has SenderSeq and SenderTime only.
type Reply struct {
	Seq         uint32        // the reflector's own, or the sender's if the reflector keeps no state
	Time        Timestamp     // T3, in the format that Error names
	Error       ErrorEstimate // about Time and Received
	SSID        uint16        // see HasSSID
	Received    Timestamp     // T2, in the format that Error names
	SenderSeq   uint32
	SenderTime  Timestamp
	SenderError ErrorEstimate // 0 if the reply is too short for it
	SenderTTL   uint8         // TTL or hop limit of the request as it arrived; see HasTTL

	HasTimes bool // Time and Received are there and not zero, which stands for "no time"
	HasSSID  bool // a session identifier was copied; reflectors without RFC 8972 leave it 0
	HasTTL   bool // the reply is long enough for SenderTTL
}

// ParseReply reads a reply. In profiles STAMP and TWAMPLight any length from 36 bytes on is taken, whatever the request's
// was, since reflectors that cut their reply short are in use. The error is [ErrSize] or, in profile DoubleZero,
// [ErrPadding].
func ParseReply(b []byte, p Profile) (Reply, error) {
	if p == DoubleZero {
		echo, err := parseDoubleZero(b)
		return Reply{SenderSeq: echo.Seq, SenderTime: echo.Time}, err
	}
	if len(b) < shortestReply {
		return Reply{}, ErrSize
	}
	r := Reply{
		Seq:        binary.BigEndian.Uint32(b[offSeq:]),
		Time:       Timestamp(binary.BigEndian.Uint64(b[offTime:])),
		Error:      ErrorEstimate(binary.BigEndian.Uint16(b[offError:])),
		Received:   Timestamp(binary.BigEndian.Uint64(b[offReceived:])),
		SenderSeq:  binary.BigEndian.Uint32(b[offSenderSeq:]),
		SenderTime: Timestamp(binary.BigEndian.Uint64(b[offSenderTime:])),
	}
	r.HasTimes = r.Time != 0 && r.Received != 0
	if len(b) >= offSenderError+2 {
		r.SenderError = ErrorEstimate(binary.BigEndian.Uint16(b[offSenderError:]))
	}
	if len(b) > offSenderTTL {
		r.SenderTTL, r.HasTTL = b[offSenderTTL], true
	}
	if p == STAMP && len(b) >= baseSize {
		r.SSID = binary.BigEndian.Uint16(b[offSSID:])
		r.HasSSID = r.SSID != 0
	}
	return r, nil
}

// Answers reports whether r is the answer to q: the same sequence number, time and, if r has one, session identifier. The
// time is what a forger, or a reply to an earlier run, does not know. The caller has checked addresses and ports.
func (r Reply) Answers(q Request) bool {
	return r.SenderSeq == q.Seq && r.SenderTime == q.Time && (!r.HasSSID || r.SSID == q.SSID)
}

// parseDoubleZero reads the packet that is request and reply alike.
func parseDoubleZero(b []byte) (Request, error) {
	if len(b) != doubleZeroSize {
		return Request{}, ErrSize
	}
	if !isDoubleZero(b) {
		return Request{}, ErrPadding
	}
	return Request{
		Seq:  binary.BigEndian.Uint32(b[offSeq:]),
		Time: Timestamp(binary.BigEndian.Uint64(b[offTime:])),
	}, nil
}

func isDoubleZero(b []byte) bool {
	const padding = doubleZeroSize - offError
	return len(b) == doubleZeroSize && [padding]byte(b[offError:]) == [padding]byte{}
}
