// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/xtwamp/xtwamp/probe/store"
)

// log is the part of *store.Log that the sink needs beside what the submitter does for it.
type log interface {
	Get(sink, key string) ([]byte, error)
	Commit(sink string, u store.Update) error
}

// entry is a write that was signed and may have been sent: the journal holds one per path from before the first byte leaves until it
// is known whether it landed. ledger.md calls what follows from it "resend the same bytes".
type entry struct {
	Account   Pubkey            `json:"account"`
	Epoch     uint64            `json:"epoch"`
	Before    uint32            `json:"before"` // the account's next index without this write
	After     uint32            `json:"after"`  // and with it
	StartUS   uint64            `json:"start_us"`
	Signed    []byte            `json:"signed"`
	Signature Signature         `json:"signature"`
	LastValid uint64            `json:"last_valid_block_height"`
	UpTo      uint64            `json:"up_to"` // number of the first sample behind the ones it settles
	Zeros     map[string]uint32 `json:"zeros,omitempty"`
}

// record is what this store knows of an account that it has written to or made. It is the proof that the account is ours to continue.
type record struct {
	Account    Pubkey            `json:"account"` // a path may have become another link
	Epoch      uint64            `json:"epoch"`
	Next       uint32            `json:"next"`
	StartUS    uint64            `json:"start_us"` // 0: nothing has been written
	IntervalUS uint64            `json:"interval_us"`
	Zeros      map[string]uint32 `json:"zeros,omitempty"` // that we wrote, by cause
}

// with returns r with more zeros.
func (r record) with(more map[string]uint32) record {
	zeros := maps.Clone(r.Zeros)
	if zeros == nil {
		zeros = make(map[string]uint32)
	}
	for c, n := range more {
		zeros[c] += n
	}
	r.Zeros = zeros
	return r
}

func (r record) interval() time.Duration { return time.Duration(r.IntervalUS) * time.Microsecond }

// Keys in the sink's area of the store.
func journalKey(p store.Path) string              { return fmt.Sprintf("journal/%d", p.ID) }
func recordKey(p store.Path, epoch uint64) string { return fmt.Sprintf("account/%d/%d", p.ID, epoch) }
func boundaryKey(epoch uint64) string             { return fmt.Sprintf("boundary/%d", epoch) }

const blockTimesKey = "block_times"

// load reads a value of the sink's area into v and reports whether there is one.
func load(l log, key string, v any) (bool, error) {
	text, err := l.Get(Name, key)
	if err != nil || text == nil {
		return false, err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return false, fmt.Errorf("%s: %w", key, err)
	}
	return true, nil
}

// asJSON is the opposite of load. What it is given always has a JSON form.
func asJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
