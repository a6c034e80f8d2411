// SPDX-License-Identifier: Apache-2.0

package doublezero

import "maps"
import "slices"

// telemetryPrograms are the ids of the telemetry program by network.
var telemetryPrograms = map[string]string{
	"mainnet-beta": "tE1exJ5VMyoC9ByZeSmgtNzJCFF74G9JAv338sJiqkC",
	"testnet":      "3KogTMmVxc5eUHtjZnwm136H5P8tvPwVu4ufbGPvM7p1",
	"devnet":       "C9xqH76NSm11pBS6maNnY163tWHT8Govww47uyEmSnoG",
}

// Networks are the names of the networks whose programs are known.
func Networks() []string { return slices.Sorted(maps.Keys(telemetryPrograms)) }

// TelemetryProgram returns the id of a network's telemetry program.
func TelemetryProgram(network string) (Pubkey, bool) {
	id, ok := telemetryPrograms[network]
	if !ok {
		return Pubkey{}, false
	}
	k, err := ParsePubkey(id)
	return k, err == nil
}
