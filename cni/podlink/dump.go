package podlink

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// dumpWait bounds how long Dump tries. On a node whose pods all start at the same time a
// dump is interrupted repeatedly, but not for seconds, because the ADDs take turns at the
// store's lock.
const dumpWait = 5 * time.Second

// Dump repeats a netlink dump until no change of the kernel's list interrupts it. An
// interrupted dump may be incomplete (NLM_F_DUMP_INTR), and a missing interface would look
// like a dead pod.
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
