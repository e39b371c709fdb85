package tun

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Offloads is the set of TUN_F_* flags (linux/if_tun.h) in force: what the kernel
// leaves unfinished in the frames it hands over.
type Offloads uint

// The requested offloads, by the kernel's values.
const (
	Checksum Offloads = unix.TUN_F_CSUM
	TSO4     Offloads = unix.TUN_F_TSO4
	TSO6     Offloads = unix.TUN_F_TSO6
	TSOECN   Offloads = unix.TUN_F_TSO_ECN
	USO4     Offloads = unix.TUN_F_USO4 // USO: Linux 6.2
	USO6     Offloads = unix.TUN_F_USO6
)

// String lists the offloads by the names ethtool-like tools use, or "none".
func (o Offloads) String() string {
	if o == 0 {
		return "none"
	}
	names := [...]struct {
		bit  Offloads
		name string
	}{{Checksum, "csum"}, {TSO4, "tso4"}, {TSO6, "tso6"}, {TSOECN, "tso-ecn"}, {USO4, "uso4"}, {USO6, "uso6"}}
	var set []string
	for _, n := range names {
		if o&n.bit != 0 {
			set = append(set, n.name)
		}
	}
	return strings.Join(set, ",")
}

// choose walks down from all offloads to those that set accepts. The kernel takes
// USO4 and USO6 only together, and nothing without Checksum. The last error is
// returned if it refuses every step.
func choose(set func(Offloads) error) (Offloads, error) {
	var err error
	for _, o := range [...]Offloads{
		Checksum | TSO4 | TSO6 | TSOECN | USO4 | USO6,
		Checksum | TSO4 | TSO6 | TSOECN,
		Checksum | TSO4 | TSO6,
		Checksum,
	} {
		if err = set(o); err == nil {
			return o, nil
		}
	}
	return 0, err
}
