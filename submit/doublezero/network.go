// SPDX-License-Identifier: Apache-2.0

package doublezero

import "maps"
import "slices"

// programs are the ids of the telemetry and the serviceability program by network.
var programs = map[string]struct{ telemetry, serviceability string }{
	"mainnet-beta": {"tE1exJ5VMyoC9ByZeSmgtNzJCFF74G9JAv338sJiqkC", "ser2VaTMAcYTaauMrTSfSrxBaUDq7BLNs2xfUugTAGv"},
	"testnet":      {"3KogTMmVxc5eUHtjZnwm136H5P8tvPwVu4ufbGPvM7p1", "DZtnuQ839pSaDMFG5q1ad2V95G82S5EC4RrB3Ndw2Heb"},
	"devnet":       {"C9xqH76NSm11pBS6maNnY163tWHT8Govww47uyEmSnoG", "GYhQDKuESrasNZGyhMJhGYFtbzNijYhcrN9poSqCQVah"},
}

// Networks are the names of the networks whose programs are known.
func Networks() []string { return slices.Sorted(maps.Keys(programs)) }

// TelemetryProgram returns the id of a network's telemetry program, which keeps the samples.
func TelemetryProgram(network string) (Pubkey, bool) { return known(programs[network].telemetry) }

// ServiceabilityProgram returns the id of a network's serviceability program, which keeps the devices and links.
func ServiceabilityProgram(network string) (Pubkey, bool) {
	return known(programs[network].serviceability)
}

func known(id string) (Pubkey, bool) {
	k, err := ParsePubkey(id)
	return k, err == nil
}
