// SPDX-License-Identifier: Apache-2.0

package ledgertest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hexBytes is bytes that JSON has as hex digits.
type hexBytes []byte

func (h *hexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

// decimal is a number that JSON has as a string of decimal digits.
type decimal uint64

func (d *decimal) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseUint(string(bytes.Trim(text, `"`)), 10, 64)
	*d = decimal(n)
	return err
}

type vectorTransaction struct {
	TxHex     hexBytes `json:"tx_hex"`
	Signature string   `json:"signature"`
}

// vectors are the parts of the shared vectors that the ledger has to do with.
type vectors struct {
	Vectors []struct {
		Name  string
		Input struct {
			Program         Pubkey   `json:"program_id"`
			Seed            hexBytes `json:"keypair_seed_hex"`
			Agent           Pubkey   `json:"agent_pubkey"`
			Origin          Pubkey   `json:"origin_device"`
			Target          Pubkey   `json:"target_device"`
			Link            Pubkey   `json:"link"`
			Epoch           decimal  `json:"epoch"`
			Interval        decimal  `json:"sampling_interval_us"`
			Start           decimal  `json:"start_timestamp_us"`
			Samples         []uint32 `json:"samples"`
			AgentVersion    string   `json:"agent_version"`
			AgentCommit     string   `json:"agent_commit"`
			RecentBlockhash Pubkey   `json:"recent_blockhash"`
		}
		Expect struct {
			PDA               Pubkey
			Initialize, Write vectorTransaction
		}
	}
	LatencyAccounts []struct {
		Name    string
		Hex     hexBytes
		Decoded struct {
			Layout         string
			Agent          Pubkey   `json:"agent"`
			AgentCommit    hexBytes `json:"agent_commit_hex"`
			AgentVersion   hexBytes `json:"agent_version_hex"`
			Epoch          decimal  `json:"epoch"`
			Link           Pubkey   `json:"link"`
			Origin         Pubkey   `json:"origin_device"`
			OriginLocation Pubkey   `json:"origin_location"`
			Target         Pubkey   `json:"target_device"`
			TargetLocation Pubkey   `json:"target_location"`
			Samples        []uint32 `json:"samples"`
			Interval       decimal  `json:"sampling_interval_us"`
			Start          decimal  `json:"start_timestamp_us"`
		}
	} `json:"latency_accounts"`
	DeviceAccounts []struct {
		Name    string
		Hex     hexBytes
		Decoded struct {
			Code      string
			Status    uint8
			Location  Pubkey
			Publisher Pubkey `json:"metrics_publisher"`
			VRF       string `json:"mgmt_vrf"`
		}
	} `json:"device_accounts"`
	LinkAccounts []struct {
		Name    string
		Hex     hexBytes
		Decoded struct {
			Code   string
			Status uint8
			SideA  Pubkey `json:"side_a"`
			SideZ  Pubkey `json:"side_z"`
			Tunnel string `json:"tunnel_net"`
		}
	} `json:"link_accounts"`
}

// readVectors reads the vectors that XTWAMP_VECTORS names the folder of.
func readVectors(t *testing.T) vectors {
	t.Helper()
	dir := os.Getenv("XTWAMP_VECTORS")
	if dir == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("XTWAMP_VECTORS is not set")
		}
		t.Skip("XTWAMP_VECTORS is not set")
	}
	b, err := os.ReadFile(filepath.Join(dir, "ledger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func padded[A [16]byte | [8]byte](s string) (a A) {
	switch p := any(&a).(type) {
	case *[16]byte:
		copy(p[:], s)
	case *[8]byte:
		copy(p[:], s)
	}
	return a
}

func TestVectors(t *testing.T) {
	for _, v := range readVectors(t).Vectors {
		t.Run(v.Name, func(t *testing.T) {
			in := v.Input
			if got := PubkeyOf(ed25519.NewKeyFromSeed(in.Seed)); got != in.Agent {
				t.Errorf("agent is %s, want %s", got, in.Agent)
			}
			simulate(t, Options{Telemetry: in.Program}, func(t *testing.T, l *Ledger) {
				l.PutDevice(in.Origin, Device{Status: DeviceActivated, Publisher: in.Agent, Location: location})
				l.PutDevice(in.Target, Device{Status: DeviceActivated, Location: Pubkey{9}})
				l.PutLink(in.Link, Link{Status: LinkActivated, SideA: in.Origin, SideZ: in.Target})
				l.Fund(in.Agent, sol)
				l.AllowBlockhash(in.RecentBlockhash)
				if got := l.SamplesAddress(in.Origin, in.Target, in.Link, uint64(in.Epoch)); got != v.Expect.PDA {
					t.Errorf("address is %s, want %s", got, v.Expect.PDA)
				}

				for _, tx := range []vectorTransaction{v.Expect.Initialize, v.Expect.Write} {
					// With preflight, so that a refusal says why.
					if r := send(t, l, tx.TxHex, false); r.Error != nil {
						t.Fatalf("sendTransaction: %d %s %s", r.Error.Code, r.Error.Message, r.Error.Data)
					} else if want := strconv.Quote(tx.Signature); string(r.Result) != want {
						t.Fatalf("signature %s, want %s", r.Result, want)
					}
					slots(40)
				}
				want := Samples{
					Epoch: uint64(in.Epoch), Agent: in.Agent, Origin: in.Origin, Target: in.Target, OriginLocation: location, TargetLocation: Pubkey{9},
					Link: in.Link, IntervalMicros: uint64(in.Interval), StartMicros: uint64(in.Start), AgentVersion: padded[[16]byte](in.AgentVersion),
					AgentCommit: padded[[8]byte](in.AgentCommit), Values: in.Samples,
				}
				got, err := l.Samples(v.Expect.PDA)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("account (-want +got):\n%s", diff)
				}
				size := 349 + 4*len(in.Samples)
				paid := uint64(2*5000 + (size+128)*6960)
				if got := l.Account(in.Agent).Lamports; got != sol-paid {
					t.Errorf("agent has %d lamports left, want %d", got, sol-paid)
				}
			})
		})
	}
}

func TestSamplesVectors(t *testing.T) {
	for _, v := range readVectors(t).LatencyAccounts {
		t.Run(v.Name, func(t *testing.T) {
			d := v.Decoded
			if d.Layout != "v1" {
				if s, err := DecodeSamples(v.Hex); err == nil {
					t.Errorf("an account that the program refuses was read: %v", s)
				}
				return
			}
			want := Samples{
				Epoch: uint64(d.Epoch), Agent: d.Agent, Origin: d.Origin, Target: d.Target, OriginLocation: d.OriginLocation,
				TargetLocation: d.TargetLocation, Link: d.Link, IntervalMicros: uint64(d.Interval), StartMicros: uint64(d.Start),
				AgentVersion: [16]byte(d.AgentVersion), AgentCommit: [8]byte(d.AgentCommit), Values: d.Samples,
			}
			got, err := DecodeSamples(v.Hex)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]byte(v.Hex), want.Encode()); diff != "" {
				t.Errorf("encoded (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceabilityVectors(t *testing.T) {
	all := readVectors(t)
	for _, v := range all.DeviceAccounts {
		t.Run(v.Name, func(t *testing.T) {
			d := v.Decoded
			want := Device{Status: d.Status, Code: d.Code, Location: d.Location, Publisher: d.Publisher, VRF: d.VRF}
			for _, b := range [][]byte{v.Hex, want.Encode()} {
				got, err := decodeDevice(b)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("device (-want +got):\n%s", diff)
				}
			}
		})
	}
	for _, v := range all.LinkAccounts {
		t.Run(v.Name, func(t *testing.T) {
			got, err := decodeLink(v.Hex)
			if err != nil {
				t.Fatal(err)
			}
			d := v.Decoded
			want := Link{Status: d.Status, Code: d.Code, SideA: d.SideA, SideZ: d.SideZ, Tunnel: netip.MustParsePrefix(d.Tunnel)}
			again, err := decodeLink(got.Encode())
			if err != nil {
				t.Fatal(err)
			}
			if got != want || again != want {
				t.Errorf("link is %+v, encoded and decoded %+v, want %+v", got, again, want)
			}
		})
	}
}
