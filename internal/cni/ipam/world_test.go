package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is a node as the store sees it: a disk, interfaces, a clock.
type world struct {
	fs     *memFS
	clock  time.Time
	boot   string
	policy Policy
	first  time.Time              // lowest the clock was in this boot
	ifaces map[Owner][]netip.Addr // living attachments
	down   map[Owner]bool         // those of them that are not started
	// strangers are living containers of the plugin that was here before, by
	// address. Nobody can see them.
	strangers map[netip.Addr]Owner
	// elsewhere is what networks with stores of their own have.
	elsewhere map[netip.Addr]Owner
	stubborn  Owner // whose interface cannot be removed
	// damaged means that another program broke records, which may be missing then.
	damaged bool
}

func newWorld() *world {
	w := &world{fs: newMemFS(), clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), boot: "boot-1",
		ifaces: map[Owner][]netip.Addr{}, down: map[Owner]bool{},
		strangers: map[netip.Addr]Owner{}, elsewhere: map[netip.Addr]Owner{}}
	w.first, w.fs.clock = w.clock, func() time.Time { return w.clock }
	return w
}

var _ Host = (*world)(nil)

func (w *world) Living() ([]Living, error) {
	var out []Living
	bare := func(o Owner) Owner { return Owner{Network: o.Network, ContainerID: o.ContainerID, IfName: o.IfName} }
	for o, addrs := range w.ifaces {
		for _, a := range addrs {
			out = append(out, Living{IP: a, Owner: bare(o), Up: !w.down[o]})
		}
	}
	for a, o := range w.elsewhere {
		out = append(out, Living{IP: a, Owner: bare(o), Up: true, Elsewhere: true})
	}
	return out, nil
}

var errStubborn = errors.New("interface cannot be removed")

func (w *world) Evict(o Owner) error {
	if o.ContainerID != "" && o.sameAttachment(w.stubborn) {
		return errStubborn
	}
	gone := func(have Owner) bool { return have.sameAttachment(o) }
	maps.DeleteFunc(w.ifaces, func(have Owner, _ []netip.Addr) bool { return gone(have) })
	maps.DeleteFunc(w.down, func(have Owner, _ bool) bool { return gone(have) })
	return nil
}

// stranger starts a container of the plugin that was here before, with its
// record: host-local's without the pod's name, OpenYurt's with it.
func (w *world) stranger(addr, container, pod string) Owner {
	o := Owner{ContainerID: container, IfName: "eth0"}
	file := addr
	if pod != "" {
		o.Namespace, o.Pod = "default", pod
		file += "_default_" + pod
	}
	w.strangers[netip.MustParseAddr(addr)] = o
	w.fs.put(file, container+"\r\neth0")
	return o
}

// setClock lets the clock jump.
func (w *world) setClock(t time.Time) {
	w.clock = t
	if t.Before(w.first) {
		w.first = t
	}
}

func (w *world) open() *Store {
	s := &Store{fs: w.fs, host: w, policy: w.policy, boot: w.boot, first: w.first,
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
	recs, err := w.allocate(req)
	if err != nil {
		return nil, err
	}
	addrs := w.connect(req.Owner, recs)
	return addrs, w.start(req.Owner, recs)
}

// allocate is the first part of ADD. A container of the same pod that another
// plugin has made is obsolete.
func (w *world) allocate(req Request) ([]Record, error) {
	maps.DeleteFunc(w.strangers, func(_ netip.Addr, s Owner) bool {
		return s.Named() && s.Namespace == req.Namespace && s.Pod == req.Pod
	})
	return w.open().Allocate(req)
}

// connect makes the interface, which is down.
func (w *world) connect(o Owner, recs []Record) []netip.Addr {
	var addrs []netip.Addr
	for _, r := range recs {
		addrs = append(addrs, r.IP)
	}
	w.ifaces[o], w.down[o] = addrs, true
	return addrs
}

// start is the end of ADD: the interface goes up, or away.
func (w *world) start(o Owner, recs []Record) error {
	err := holds(w.fs, recs)
	if err == nil {
		err = shared(w, recs)
	}
	if _, ok := w.ifaces[o]; err == nil && !ok {
		err = errors.New("the interface is gone")
	}
	if err != nil {
		return errors.Join(err, w.del(o))
	}
	delete(w.down, o)
	return nil
}

func (w *world) del(o Owner) error {
	maps.DeleteFunc(w.strangers, func(_ netip.Addr, s Owner) bool { return s.ContainerID == o.ContainerID })
	_, err := w.open().Release(o)
	return err
}

// killed runs f and reports whether it was killed meanwhile.
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
	clear(w.down)
	clear(w.strangers)
	w.boot += "'"
	w.clock = w.clock.Add(time.Second)
	w.first = w.clock
}

// sound checks what must hold at every moment: no address on two interfaces,
// and every interface's address is its own on the disk too.
func (w *world) sound() error {
	seen := map[netip.Addr]Owner{}
	s := w.open()
	for o, addrs := range w.ifaces {
		if w.down[o] {
			continue
		}
		for _, a := range addrs {
			if other, ok := seen[a]; ok {
				return fmt.Errorf("%s on the interfaces of %v and %v", a, other, o)
			}
			if other, ok := w.strangers[a]; ok {
				return fmt.Errorf("%s on the interface of %v is the stranger's %v", a, o, other)
			}
			if other, ok := w.elsewhere[a]; ok {
				return fmt.Errorf("%s on the interface of %v is also another network's %v", a, o, other)
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
	for a, o := range w.strangers {
		if r, ok := s.records[a]; !w.damaged && (!ok || r.ContainerID != o.ContainerID) {
			return fmt.Errorf("the record of the stranger %v with %s says %+v", o, a, r)
		}
	}
	return nil
}

// oneFilePerAddress checks the contract on the store's directory.
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

// must gives a pod in container an address, a minute later than the last.
func must(t *testing.T, w *world, req Request) string {
	t.Helper()
	w.clock = w.clock.Add(time.Minute)
	got, err := w.add(req)
	if err != nil {
		t.Fatalf("ADD %s/%s: %v", req.Namespace, req.Pod, err)
	}
	if err := errors.Join(w.sound(), w.oneFilePerAddress()); err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, a := range got {
		s = append(s, a.String())
	}
	return strings.Join(s, " ")
}

func gone(t *testing.T, w *world, o Owner) {
	t.Helper()
	w.clock = w.clock.Add(time.Minute)
	if err := w.del(o); err != nil {
		t.Fatalf("DEL %v: %v", o, err)
	}
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}
