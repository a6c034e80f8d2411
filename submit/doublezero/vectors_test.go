// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mustKey is a public key that is known to be one.
func mustKey(s string) Pubkey {
	k, err := ParsePubkey(s)
	if err != nil {
		panic(err)
	}
	return k
}

// seedFrom counts up from its first byte.
func seedFrom(first byte) (s [32]byte) {
	for i := range s {
		s[i] = first + byte(i)
	}
	return s
}

// unhex decodes hex digits with spaces anywhere.
func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Two devices and a link, under the telemetry program of devnet.
var (
	devnetProgram = mustKey("C9xqH76NSm11pBS6maNnY163tWHT8Govww47uyEmSnoG")
	amsterdam     = mustKey("4Wr7PQr5kyqCNJo3RKa8675K7ZtQ6fBUeorcexgp49Zp")
	london        = mustKey("Cpt3doj17dCF6bEhvc7VeAuZbXLD88a1EboTyE8uj6ZL")
	amsLon        = mustKey("6X6S1cVvHZbYVirtiNqcQz7kDoLCtuMLt8HpGzSc6yDH")
	someBlock     = hash{1}
)

// transactionVector is what an agent signs to make an account and to write to it. Nobody can sign other bytes to the same signature.
type transactionVector struct {
	name            string
	program         Pubkey
	seed            byte // the first of the key pair
	key             AccountKey
	interval, start uint64
	samples         []uint32
	version, commit string

	address                   string
	bump                      uint8
	initialize, write         string // signatures
	initializeSize, writeSize int    // bytes
}

// transactionVectors were made by the agent that xtwamp replaces, and have their names from ledger.json.
var transactionVectors = []transactionVector{
	{
		name:    "basic-four-samples",
		program: devnetProgram, seed: 0,
		key:      AccountKey{Origin: amsterdam, Target: london, Link: amsLon, Epoch: 194},
		interval: 10000000, start: 1785500000000000,
		samples: []uint32{100, 200, 0, 4294967295},
		version: "0.34.0", commit: "5f9fe325",
		address: "7RmFk5GeBKw6mSfV2XhPiaWPuwLXU7Qgkoa7JU4deU6K", bump: 253,
		initialize: "2N9fbYhqVemqJExH9Bx9ui7DRjvjsM7c9583EYFYm5T3Ljn93fGfheaYiFYa9RhCCYaZ9uUAZ1LRwvndafvRjLmr", initializeSize: 376,
		write: "4ZUwVnMSCVLszAVMapMEsdJruaa4Sq67z2dWohcNDFab4sMkjZN9Z4o9f2V8vc1228xBmEkZbDfiadqtkwR3BKND", writeSize: 289,
	},
	{
		name:    "one-sample-no-version",
		program: devnetProgram, seed: 0,
		key:      AccountKey{Origin: amsterdam, Target: london, Link: amsLon, Epoch: 194},
		interval: 10000000, start: 1785500000000000,
		samples: []uint32{1},
		address: "7RmFk5GeBKw6mSfV2XhPiaWPuwLXU7Qgkoa7JU4deU6K", bump: 253,
		initialize: "8AiGCLKBw9RWpbCjVLN1X28KSRkCnXNA3yMMY6NdUFH7kGZAfD3r5eNrxk8fzb5uJQfTZtiC1wemfPdpxuRJTit", initializeSize: 376,
		write: "4bSxLdrAUWQ6ZnWRzNkcB367K3W9kHowq3qzzaLbskbzp8wmoyTGR8Pxz59qdMUmwpPHAATp6RTE6irnJXypkdKv", writeSize: 277,
	},
	{
		name:    "full-batch-239",
		program: devnetProgram, seed: 7,
		key:      AccountKey{Origin: amsterdam, Target: london, Link: amsLon, Epoch: 194},
		interval: 10000000, start: 1785500000000000,
		samples: fullBatch(),
		version: "0.34.0", commit: "5f9fe325",
		address: "7RmFk5GeBKw6mSfV2XhPiaWPuwLXU7Qgkoa7JU4deU6K", bump: 253,
		initialize: "CDTiTKsENu9dHZp9uuVXnKPVadvrT5zNx3N32NV7xXikSeYQeQDWsHwgdhJdFc6WiWtuc25eyQyro89Hgmw8D8G", initializeSize: 376,
		write: "3SDzjEqSUYKzuvMNPMdxXvGyUTLtrPmNtQaQepugScrD2hiPaHMc52GrkC7w8qKNatEuRcZdwGpfu4VkPgR8oXoA", writeSize: 1230,
	},
	{
		name:    "swapped-direction",
		program: devnetProgram, seed: 0,
		key:      AccountKey{Origin: london, Target: amsterdam, Link: amsLon, Epoch: 194},
		interval: 10000000, start: 1785500000000000,
		samples: []uint32{11520, 11530, 11525},
		version: "0.34.0", commit: "5f9fe325",
		address: "9CNNfdHp6JAPZWkL1tCzAxXSJTZyZgFoQ7RKQmnhW6Wv", bump: 254,
		initialize: "2uNQausYYfrLwMiUuJ1nELtaig2ipbb4Howp3dcuvwBBjncd35CfwiqHzikpDNvgK7Yabpy28ddxwPn5fgze8ok6", initializeSize: 376,
		write: "4BGhExawU73DvE3yo4ePSgjF6iszeb7pRrf1YXx2DXfyM3siTqjJUEdgXT3bV3ZWDQ67R8Pg5GxKYv6SgPAKaEwL", writeSize: 285,
	},
	{
		name:    "u64-max-values",
		program: devnetProgram, seed: 9,
		key:      AccountKey{Origin: amsterdam, Target: london, Link: amsLon, Epoch: math.MaxUint64},
		interval: 1, start: math.MaxUint64,
		samples: []uint32{5, 6},
		version: "0.34.0", commit: "5f9fe325",
		address: "2mDjzzqvrNcNFJf6MQvkifBuWDdCU469zuJJjfhFy7AT", bump: 254,
		initialize: "5MVRuRSCzZRVf36FRzX3neMtsWy7h8WmBEUD3i5AGkAb5oTkZrsscQcqXZTPNmf5Sbq13NoLknhAbZje6D6aSbtS", initializeSize: 376,
		write: "4yBkpivS6gBPYK33zFK3pKLH3bhJnpsC1eKJyQxDL3HxwGcRnqFKdpoiY5fy4Z35BDfWeF8kBiXYArAFYw1TuMeK", writeSize: 281,
	},
	{
		name:    "version-and-commit-truncated",
		program: mustKey("tE1exJ5VMyoC9ByZeSmgtNzJCFF74G9JAv338sJiqkC"), seed: 3,
		key:      AccountKey{Origin: amsterdam, Target: london, Link: amsLon, Epoch: 194},
		interval: 10000000, start: 1785500000000000,
		samples: []uint32{0, 0, 0},
		version: "12.345.6789-rc.10+dirty", commit: "0123456789abcdef",
		address: "DLcF9MSiSFsusjckavpSutmXyqS7eSgh2NbVyJnR5w6f", bump: 254,
		initialize: "3KVd4hwzsz8ER4umy2KT92ZnjmdyCk1detzwBa7HHxkJvQoH8MFfvKV5pf5tRFNMwQVoDD5hs1Ph7c5xq13YJUQp", initializeSize: 376,
		write: "59okViRszYUE3jp1S7DoPtTqDGFdhEmsafYAVMUseo1x3i3gjgbJEUvJ2coxKaCbMj4Kw49t5W67U42GnY4hvH4q", writeSize: 285,
	},
}

// fullBatch is 0, 1000, 2000, and so on.
func fullBatch() (s []uint32) {
	for i := range uint32(MaxSamplesPerWrite) {
		s = append(s, 1000*i)
	}
	return s
}

func (v transactionVector) agent() *agent {
	return newAgent(newKeypair(seedFrom(v.seed)), v.program, v.version, v.commit)
}

func TestTransactionsAreThoseOfTheVectors(t *testing.T) {
	for _, v := range transactionVectors {
		t.Run(v.name, func(t *testing.T) {
			address, bump, err := v.key.Address(v.program)
			if err != nil || address.String() != v.address || bump != v.bump {
				t.Fatalf("address %s, bump %d, error %v; want %s, %d", address, bump, err, v.address, v.bump)
			}
			check := func(what string, signed []byte, sig Signature, err error, want string, size int) {
				t.Helper()
				if err != nil || sig.String() != want {
					t.Errorf("%s: signature %s, error %v; want %s", what, sig, err, want)
				}
				if len(signed) != size {
					t.Errorf("%s: %d bytes, want %d", what, len(signed), size)
				}
				if err == nil && Signature(signed[1:65]) != sig {
					t.Errorf("%s: signed %x, want %x", what, signed[1:65], sig[:])
				}
			}
			signed, sig, err := v.agent().initializeTransaction(v.key, v.interval, someBlock)
			check("initialize", signed, sig, err, v.initialize, v.initializeSize)
			signed, sig, err = v.agent().writeTransaction(address, v.start, v.samples, someBlock)
			check("write", signed, sig, err, v.write, v.writeSize)
		})
	}
}

func TestWriteTransactionByteByByte(t *testing.T) {
	v := transactionVectors[0]
	signed, _, err := v.agent().writeTransaction(mustKey(v.address), v.start, v.samples, someBlock)
	if err != nil {
		t.Fatal(err)
	}
	want := unhex(t, "01"+ // one signature
		"b20fdee7466767648084a0c695ab3832ea5faaeaf678e7ebb638db761eece75afce8f286e36b0ef0460b28ae050b40b5d834504991b056fcc829aad5c3474806"+
		"01 00 02 04"+ // one signs; two of four keys are read-only
		"03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"+ // agent
		"5f7e196e669683542af00f89eec11a9ea37999aa2b8426f5fbe3394d2f135e28"+ // account
		"0000000000000000000000000000000000000000000000000000000000000000"+ // system program
		"a5bc5520990854d850c023e4f5789fc5ec8f14942867c4e3bfe5903256d9cb97"+ // telemetry program
		"0100000000000000000000000000000000000000000000000000000000000000"+ // blockhash
		"01 03 03 010002 35"+ // one instruction of program 3 with three accounts and 53 bytes
		"01 00183f1de7570600 04000000 64000000 c8000000 00000000 ffffffff"+
		"302e33342e3000000000000000000000 3566396665333235")
	if diff := cmp.Diff(hex.EncodeToString(want), hex.EncodeToString(signed)); diff != "" {
		t.Errorf("transaction (-want +got):\n%s", diff)
	}
}

// accountVectors are samples accounts of either layout, by the name that they have in ledger.json or, of the last, as a file.
var accountVectors = []struct {
	name, data string // a line has one field or several
	want       Header
	samples    []uint32
}{
	{
		name: "v1-empty",
		data: "03 5100000000000000" +
			"4f163f5f0f9a621d729566c74d10037c4d7bbb0407d1e2c64981855ad8681d0d" +
			"86d1e91e00167939cb6694d2c422acd208a0072939487f6999eb9d18a4478404" +
			"5d87f3c67cf22746e995af5a25367951baa2ff6cd471c483f15fb90badb37c58" +
			"21b6d95526a41a9504680b4e7c8b763a1b1d49d4955c8486216325253fec738d" +
			"d7a9e28bf921119c160f0702448615bbda08313f6a8eb668d20bf5059875921e" +
			"668a5bdf2c7fc4844592d2572bcd0668d2d6c52f5054e2d0836bf84c7174cb74" +
			"8096980000000000 0000000000000000 00000000 302e33342e3000000000000000000000 3566396665333235" +
			strings.Repeat("00", 104),
		want: Header{
			Version:        1,
			Epoch:          81,
			Agent:          mustKey("6KitGezqaLNnPTn5cUJ3XjXex9hhCQTRi9LA9QdSbUzx"),
			Origin:         mustKey("A5HH6YkxXGKRFjXcZz8jD9Hof4XhRjxqccATC5v9oacb"),
			Target:         mustKey("7J79rr6BpiuQJL5XLLx97NGtcAAMNBuy25cs36h2jq4B"),
			OriginLocation: mustKey("3GcAfLgH5aSdWrs94mD6qiEKtR5Pb3B8E44Lu4U4359E"),
			TargetLocation: mustKey("FWruKm2t6cFJmvNkFWQ8cnyki7txkknyrJXJspiLgSE1"),
			Link:           mustKey("7uGx8MQZssiJrNfGHgGjpH81ndKoXQ1QTmtTicRpXgvP"),
			IntervalMicros: 10000000,
			StartMicros:    0,
			NextIndex:      0,
			AgentVersion:   newRelease("0.34.0", "").version,
			AgentCommit:    newRelease("", "5f9fe325").commit,
		},
		samples: []uint32{},
	},
	{
		name: "v1-three",
		data: "03 2900000000000000" +
			"76364cc33b525da1786f9fff094279db1944ebd7a19d0f7bbacbe0255aa5b7d4" +
			"4bec40f84c892b9bffd43629b0223beea5f4f74391f445d15afd4294040374f6" +
			"924b98cbf8713f8d962d7c8d019192c24224e2cafccae3a61fb586b14323a6bc" +
			"8f9e7df1d929333ff993933bea6f5b3af6de0374366c4719e43a1b067d89bc7f" +
			"01f1f573981659a44ff17a4c7215a3b539eb1e5849c6077dbb5722f5717a289a" +
			"266f97647981998ebea89c0b4b373970115e82ed6f4125c8fa7311e4d7defa92" +
			"8096980000000000 6787d6d172570600 03000000 302e33342e3000000000000000000000 3566396665333235" +
			strings.Repeat("00", 104) + "07a20200 e1cd0000 00000000",
		want: Header{
			Version:        1,
			Epoch:          41,
			Agent:          mustKey("8xT8d36t9RNosvsfJAbuEjbFoZ68PjmEpFi7V4xDCwaj"),
			Origin:         mustKey("67NXEvbXxCxp7c6aCoyxsJScURExHaeUinVNmyGjsBbB"),
			Target:         mustKey("Ar5PATUbv542Xfq6Atx4p5bGeiHqPAtB3hJnx7fHXKN3"),
			OriginLocation: mustKey("AfdUNR2g4qwKER1fCtKW4282bumP2uE5xNstfdjcgZGJ"),
			TargetLocation: mustKey("8bQ3TdAoEUSfQ9aPYpMWcpeoHFVn9M8AwjWo27peqcu"),
			Link:           mustKey("3b3Bhe4N6ihbMWo7SdnStrvBCE5qKFriDWqjztiQK5gD"),
			IntervalMicros: 10000000,
			StartMicros:    1785000518649703,
			NextIndex:      3,
			AgentVersion:   newRelease("0.34.0", "").version,
			AgentCommit:    newRelease("", "5f9fe325").commit,
		},
		samples: []uint32{172551, 52705, 0},
	},
	{
		name: "v0-two",
		data: "016a 1c00000000000000" +
			"2d9dec6a40e9a1d007f033c2823061bdd0eaa59f8e4da6430105220d0b29688b" +
			"734b8ea0f3ca9936e8461f10d77c96ea80a7a665f606f6a63b7f3dfd2567c189" +
			"79e4d60f26686d9bf2fb26c901ff354cde1607ee294b39f32b7c7822ba64f84a" +
			"b43ca0c6e6b91c1fd3be8990434179d3af4491a369012db92d184fc39d1734ff" +
			"5716428953bb6865fcf92b0c3a17c9028be9914eb7649c6c9347800979d18303" +
			"56f2a54c3deab2a4b4475d63afbe8fb56987c77f5818526f1814be823350eab1" +
			"404b4c0000000000 00904a1e583a0600 02000000 00000000000000000000000000000000 0000000000000000" +
			strings.Repeat("00", 104) + "00000000 bc770000",
		want: Header{
			Version:        0,
			Epoch:          28,
			Agent:          mustKey("4551rawggAe5RgJLdpkKjC9gJa2hFag4L5NehLoN4X5c"),
			Origin:         mustKey("8m4i5wAdWRUCtCQL4oBBmCJfcsyg6EhksDXZuWgMbWZ6"),
			Target:         mustKey("9CpiVFyiFL6qNKWFTufhqdukokYs5ddNPbTVe2bXyLuw"),
			OriginLocation: mustKey("D8a1JxcKkXPYz5nWEFm2Jpq8t1zPTZgQidnSxe5kGgdL"),
			TargetLocation: mustKey("6rxA5QFkc6LicqFVFkip4Z2cWSh9SJTMRFVk99gKqU6N"),
			Link:           mustKey("6rQfEBLZiYZqyhMhT4DN4QgahCaY2NAKbdSvX54Gpr8G"),
			IntervalMicros: 5000000,
			StartMicros:    1753000000000000,
			NextIndex:      2,
		},
		samples: []uint32{0, 30652},
	},
	{
		name: "device_latency_samples",
		data: "03 584d000000000000" +
			"0100000000000000000000000000000000000000000000000000000000000000" +
			"0200000000000000000000000000000000000000000000000000000000000000" +
			"0300000000000000000000000000000000000000000000000000000000000000" +
			"0400000000000000000000000000000000000000000000000000000000000000" +
			"0500000000000000000000000000000000000000000000000000000000000000" +
			"0600000000000000000000000000000000000000000000000000000000000000" +
			"404b4c0000000000 00401e18240a0600 05000000 312e302e302d74657374000000000000 6162636431323334" +
			strings.Repeat("00", 104) + "64000000 c8000000 2c010000 90010000 f4010000",
		want: Header{
			Version:        1,
			Epoch:          19800,
			Agent:          mustKey("4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM"),
			Origin:         mustKey("8opHzTAnfzRpPEx21XtnrVTX28YQuCpAjcn1PczScKh"),
			Target:         mustKey("CiDwVBFgWV9E5MvXWoLgnEgn2hK7rJikbvfWavzAQz3"),
			OriginLocation: mustKey("GcdayuLaLyrdmUu324nahyv33G5poQdLUEZ1nEytDeP"),
			TargetLocation: mustKey("LX3EUdRUBUa3TbsYXLEUdj9J3prXkWXvLYSWyYyc2Jj"),
			Link:           mustKey("QRSsyMWN1yHT9ir42bgNZUNZ4PdEhcSWCrL2AryKpy5"),
			IntervalMicros: 5000000,
			StartMicros:    1700000000000000,
			NextIndex:      5,
			AgentVersion:   newRelease("1.0.0-test", "").version,
			AgentCommit:    newRelease("", "abcd1234").commit,
		},
		samples: []uint32{100, 200, 300, 400, 500},
	},
}

func TestAccountsAreThoseOfTheVectors(t *testing.T) {
	for _, v := range accountVectors {
		t.Run(v.name, func(t *testing.T) {
			data := unhex(t, v.data)
			h, samples, err := DecodeSamples(data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(v.want, h); diff != "" {
				t.Errorf("header (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(v.samples, samples); diff != "" {
				t.Errorf("samples (-want +got):\n%s", diff)
			}
			h, err = DecodeHeader(data[:min(len(data), maxHeaderSize)])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(v.want, h); diff != "" {
				t.Errorf("header of what a slice gives (-want +got):\n%s", diff)
			}
		})
	}
}

// sharedVectors returns the folder with the vectors that others keep for us.
func sharedVectors(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("XTWAMP_VECTORS")
	if dir == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("XTWAMP_VECTORS is not set")
		}
		t.Skip("XTWAMP_VECTORS is not set")
	}
	return dir
}

// sharedTransaction is what ledger.json says of one transaction.
type sharedTransaction struct {
	Data    string    `json:"data_hex"`
	Keys    []Pubkey  `json:"message_account_keys"`
	Message string    `json:"message_hex"`
	Sig     Signature `json:"signature"`
	Signed  string    `json:"tx_hex"`
	Base64  string    `json:"tx_base64"`
	Size    int       `json:"tx_size"`
}

func TestVectorsOfTheSharedFile(t *testing.T) {
	dir := sharedVectors(t)
	file, err := os.ReadFile(filepath.Join(dir, "ledger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var shared struct {
		Vectors []struct {
			Name  string
			Input struct {
				Program  Pubkey   `json:"program_id"`
				Seed     string   `json:"keypair_seed_hex"`
				Agent    Pubkey   `json:"agent_pubkey"`
				Origin   Pubkey   `json:"origin_device"`
				Target   Pubkey   `json:"target_device"`
				Link     Pubkey   `json:"link"`
				Epoch    uint64   `json:",string"`
				Interval uint64   `json:"sampling_interval_us,string"`
				Start    uint64   `json:"start_timestamp_us,string"`
				Samples  []uint32 `json:"samples"`
				Version  string   `json:"agent_version"`
				Commit   string   `json:"agent_commit"`
				Block    hash     `json:"recent_blockhash"`
			}
			Expect struct {
				PDA               Pubkey
				Bump              uint8
				Initialize, Write sharedTransaction
			}
		}
		Accounts []struct {
			Name, Hex string
			Decoded   struct {
				Layout         string   `json:"layout"`
				Epoch          uint64   `json:"epoch,string"`
				Agent          Pubkey   `json:"agent"`
				Origin         Pubkey   `json:"origin_device"`
				Target         Pubkey   `json:"target_device"`
				OriginLocation Pubkey   `json:"origin_location"`
				TargetLocation Pubkey   `json:"target_location"`
				Link           Pubkey   `json:"link"`
				Interval       uint64   `json:"sampling_interval_us,string"`
				Start          uint64   `json:"start_timestamp_us,string"`
				Next           uint32   `json:"next_sample_index"`
				Version        string   `json:"agent_version_hex"`
				Commit         string   `json:"agent_commit_hex"`
				Samples        []uint32 `json:"samples"`
			}
		} `json:"latency_accounts"`
	}
	if err := json.Unmarshal(file, &shared); err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, v := range shared.Vectors {
		names = append(names, v.Name)
		in, want := v.Input, v.Expect
		k := newKeypair([32]byte(unhex(t, in.Seed)))
		if k.Public() != in.Agent {
			t.Errorf("%s: agent %s, want %s", v.Name, k.Public(), in.Agent)
		}
		id := AccountKey{Origin: in.Origin, Target: in.Target, Link: in.Link, Epoch: in.Epoch}
		address, bump, err := id.Address(in.Program)
		if err != nil || address != want.PDA || bump != want.Bump {
			t.Errorf("%s: address %s, bump %d, error %v; want %s, %d", v.Name, address, bump, err, want.PDA, want.Bump)
		}
		a := newAgent(k, in.Program, in.Version, in.Commit)
		check := func(what string, data, signed []byte, sig Signature, err error, want sharedTransaction) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %s: %v", v.Name, what, err)
				return
			}
			message := signed[65:]
			got := sharedTransaction{
				Data: hex.EncodeToString(data), Message: hex.EncodeToString(message), Sig: sig,
				Signed: hex.EncodeToString(signed), Base64: base64.StdEncoding.EncodeToString(signed), Size: len(signed),
			}
			for b := range slices.Chunk(message[4:4+32*int(message[3])], 32) {
				got.Keys = append(got.Keys, Pubkey(b))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", v.Name, what, diff)
			}
		}
		signed, sig, err := a.initializeTransaction(id, in.Interval, in.Block)
		check("initialize", initializeData(in.Epoch, in.Interval, a.release), signed, sig, err, want.Initialize)
		signed, sig, err = a.writeTransaction(address, in.Start, in.Samples, in.Block)
		check("write", writeData(in.Start, in.Samples, a.release), signed, sig, err, want.Write)
	}
	var restated []string
	for _, v := range transactionVectors {
		restated = append(restated, v.name)
	}
	if diff := cmp.Diff(names, restated); diff != "" {
		t.Errorf("transactions in the shared file (-) and here (+):\n%s", diff)
	}

	names, restated = nil, nil
	for _, v := range shared.Accounts {
		names = append(names, v.Name+" "+v.Hex)
		h, samples, err := DecodeSamples(unhex(t, v.Hex))
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		d := v.Decoded
		d.Layout, d.Epoch, d.Next, d.Samples = fmt.Sprint("v", h.Version), h.Epoch, h.NextIndex, samples
		d.Agent, d.Origin, d.Target, d.Link = h.Agent, h.Origin, h.Target, h.Link
		d.OriginLocation, d.TargetLocation = h.OriginLocation, h.TargetLocation
		d.Interval, d.Start = h.IntervalMicros, h.StartMicros
		d.Version, d.Commit = hex.EncodeToString(h.AgentVersion[:]), hex.EncodeToString(h.AgentCommit[:])
		if diff := cmp.Diff(v.Decoded, d); diff != "" {
			t.Errorf("%s (-want +got):\n%s", v.Name, diff)
		}
	}
	bin, err := os.ReadFile(filepath.Join(dir, "accounts", "device_latency_samples.bin"))
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, "device_latency_samples "+hex.EncodeToString(bin))
	for _, v := range accountVectors {
		restated = append(restated, v.name+" "+strings.ReplaceAll(v.data, " ", ""))
	}
	if diff := cmp.Diff(names, restated); diff != "" {
		t.Errorf("accounts in the shared file (-) and here (+):\n%s", diff)
	}
}
