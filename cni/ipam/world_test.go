package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// world is a node as the store sees it: a disk, interfaces, a clock.
type world struct {
	fs     *memFS
	clock  time.Time
	boot   string
	policy Policy
	ifaces map[Owner][]netip.Addr // living attachments
	// damaged means that somebody else broke records, which may be missing then.
	damaged bool
}

func newWorld() *world {
	return &world{fs: newMemFS(), clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), boot: "boot-1",
		ifaces: map[Owner][]netip.Addr{}}
}

var _ Host = (*world)(nil)

func (w *world) Living() (map[netip.Addr]Owner, error) {
	out := map[netip.Addr]Owner{}
	for o, addrs := range w.ifaces {
		for _, a := range addrs {
			out[a] = Owner{Network: o.Network, ContainerID: o.ContainerID, IfName: o.IfName}
		}
	}
	return out, nil
}

func (w *world) Evict(o Owner) error {
	maps.DeleteFunc(w.ifaces, func(have Owner, _ []netip.Addr) bool { return have.sameAttachment(o) })
	return nil
}

func (w *world) open() *Store {
	s := &Store{fs: w.fs, host: w, policy: w.policy, boot: w.boot,
		clock: func() time.Time { return w.clock }, unlock: func() error { return nil }}
	if err := s.load(); err != nil {
		panic(err)
	}
	return s
}

func pod(name, container string) Owner {
	return Owner{Network: "net", ContainerID: container, IfName: "eth0", Namespace: "default", Pod: name}
}

func prefixes(ss ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range ss {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// add is a whole ADD: record, interface, check.
func (w *world) add(req Request) ([]netip.Addr, error) {
	recs, err := w.open().Allocate(req)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, r := range recs {
		addrs = append(addrs, r.IP)
	}
	w.ifaces[req.Owner] = addrs
	return addrs, holds(w.fs, recs)
}

func (w *world) del(o Owner) error {
	_, err := w.open().Release(o)
	return err
}

// killed runs f and reports whether it was killed on the way.
func (w *world) killed(f func()) (killed bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(errKilled); !ok {
				panic(p)
			}
			killed = true
		}
		w.fs.dieAt = 0
	}()
	f()
	return false
}

// powerCut ends every attachment, loses what was not on the disk, and starts
// the next boot.
func (w *world) powerCut(pick func(int) int) {
	w.fs.powerCut(pick)
	clear(w.ifaces)
	w.boot += "'"
}

// sound checks what must hold at every moment: no address on two interfaces,
// and every interface's address is its own on the disk too.
func (w *world) sound() error {
	seen := map[netip.Addr]Owner{}
	s := w.open()
	for o, addrs := range w.ifaces {
		for _, a := range addrs {
			if other, ok := seen[a]; ok {
				return fmt.Errorf("%s on the interfaces of %v and %v", a, other, o)
			}
			seen[a] = o
			r := s.records[a]
			if r.torn && w.damaged {
				continue
			}
			if r.torn || !r.InUse() || !r.sameAttachment(o) {
				return fmt.Errorf("%s is on the interface of %v, its record says %+v", a, o, r)
			}
		}
	}
	return nil
}

// oneFilePerAddress checks the contract on the store's folder.
func (w *world) oneFilePerAddress() error {
	byAddr := map[string][]string{}
	for name := range w.fs.names {
		if addr, _, ok := strings.Cut(name, "_"); ok {
			byAddr[addr] = append(byAddr[addr], name)
		}
	}
	for addr, names := range byAddr {
		if len(names) > 1 {
			slices.Sort(names)
			return errors.New(addr + " has several files: " + strings.Join(names, ", "))
		}
	}
	return nil
}
