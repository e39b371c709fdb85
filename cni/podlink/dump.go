package podlink

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// dumpWait bounds how long Dump tries. On a node whose pods all start at once
// a dump is interrupted again and again, but not for seconds: each ADD waits
// for the store's lock in turn.
const dumpWait = 5 * time.Second

// Dump repeats a netlink dump until no change of the kernel's list has
// interrupted it. An interrupted one may lack entries (NLM_F_DUMP_INTR), and
// a missing interface would pass for a dead pod's.
func Dump[T any](list func() (T, error)) (T, error) {
	deadline := time.Now().Add(dumpWait)
	for {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || time.Now().After(deadline) {
			return out, err
		}
	}
}

func addrList(l netlink.Link) ([]netlink.Addr, error) {
	return Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
}
