package ipam

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is what the store should remember, kept in the simplest way: per pod
// the addresses it last got, and per address which pod had it last.
type model struct {
	*world
	blocks []netip.Prefix
	serial int
	last   map[string][]netip.Addr // pod → its latest addresses
	holder map[netip.Addr]string   // address → the pod that got it latest
	torn   bool                    // records were damaged, so names may be lost
}

func (m *model) request(o Owner) Request { return Request{Owner: o, Blocks: m.blocks} }

// add makes a pod's new container and checks the address it gets.
func (m *model) add(t *rapid.T, name string, crash int) {
	m.serial++
	o := pod(name, fmt.Sprintf("c%d", m.serial))
	m.clock = m.clock.Add(2 * startGrace) // nothing earlier counts as under way
	var got []netip.Addr
	var err error
	m.fs.dieAt = crash
	if m.killed(func() { got, err = m.world.add(m.request(o)) }) {
		// What the killed call did is only known from the disk.
		m.learn()
		return
	}
	if err != nil {
		if !errors.Is(err, ErrFull) {
			t.Fatalf("ADD %s: %v", name, err)
		}
		for _, b := range m.blocks {
			taken := m.livingIn(b)
			for _, r := range m.open().Records() {
				if b.Contains(r.IP) && r.InUse() && m.onItsWay(r) && !m.open().Alive(r) {
					taken++
				}
			}
			if uint64(taken) == usable([]netip.Prefix{b}, nil) {
				return
			}
		}
		t.Fatalf("ADD %s: %v, but there are addresses that nobody uses", name, err)
	}
	for i, a := range got {
		first, last := span(m.blocks[i])
		if a.Less(first) || last.Less(a) {
			t.Fatalf("ADD %s: %s is none of %s", name, a, m.blocks[i])
		}
	}
	if want := m.last[name]; want != nil && !m.torn && m.mine(name, want) && !slices.Equal(want, got) {
		t.Fatalf("ADD %s: got %v, had %v, which nobody else got meanwhile", name, got, want)
	}
	m.learn()
}

// mine reports whether the pod was the last to get these addresses.
func (m *model) mine(name string, addrs []netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return m.holder[a] != name })
}

// onItsWay reports whether r's ADD may still be under way.
func (m *model) onItsWay(r Record) bool {
	age := m.clock.Sub(r.Allocated)
	return r.Boot == m.boot && age >= 0 && age < startGrace
}

func (m *model) livingIn(b netip.Prefix) int {
	n := 0
	for _, addrs := range m.ifaces {
		for _, a := range addrs {
			if b.Contains(a) {
				n++
			}
		}
	}
	return n
}

// learn takes over who has what after a call.
func (m *model) learn() {
	s := m.open()
	seen := map[string][]Record{}
	for _, r := range s.Records() {
		if r.torn {
			m.torn = true
			continue
		}
		m.holder[r.IP] = r.Pod
		seen[r.Pod] = append(seen[r.Pod], r)
	}
	for pod, recs := range seen {
		if len(recs) == len(m.blocks) {
			m.last[pod] = nil
			for _, r := range recs {
				m.last[pod] = append(m.last[pod], r.IP)
			}
		} else {
			delete(m.last, pod) // killed half-way, or a family ran short
		}
	}
}

// TestModel drives the store with random calls, kills and power cuts and
// compares it with the model after each.
func TestModel(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", "1000"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		m := &model{world: newWorld(), last: map[string][]netip.Addr{}, holder: map[netip.Addr]string{}}
		m.blocks = rapid.SampledFrom([][]netip.Prefix{
			prefixes("10.1.1.0/28"),
			prefixes("10.1.1.0/29", "fd00:1::/64"),
			prefixes("fd00:1::/124"),
		}).Draw(t, "blocks")
		pods := rapid.SampledFrom([]string{"web-0", "web-1", "db-0", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"})
		crash := rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "survives") }
		owners := func(t *rapid.T) Owner {
			var all []Owner
			for _, r := range m.open().Records() {
				if r.InUse() && !r.torn {
					all = append(all, r.Owner)
				}
			}
			for o := range m.ifaces {
				if !slices.Contains(all, o) {
					all = append(all, o)
				}
			}
			if len(all) == 0 {
				t.Skip("no attachment")
			}
			slices.SortFunc(all, func(a, b Owner) int { return compareOwners(a, b) })
			return rapid.SampledFrom(all).Draw(t, "attachment")
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) { m.add(t, pods.Draw(t, "pod"), crash.Draw(t, "crash")) },
			"del": func(t *rapid.T) {
				o := owners(t)
				m.clock = m.clock.Add(time.Second)
				m.fs.dieAt = crash.Draw(t, "crash")
				m.killed(func() {
					if err := m.del(o); err != nil {
						t.Fatalf("DEL %v: %v", o, err)
					}
				})
				m.learn()
			},
			"container dies": func(t *rapid.T) { _ = m.Evict(owners(t)) },
			"reboot": func(t *rapid.T) {
				m.powerCut(pick)
				m.learn()
			},
			"clock starts in the past": func(t *rapid.T) { m.clock = time.Unix(0, 0) },
			"reconcile": func(t *rapid.T) {
				m.clock = m.clock.Add(2 * startGrace)
				m.fs.dieAt = crash.Draw(t, "crash")
				killed := m.killed(func() {
					if _, _, err := m.open().Reconcile(); err != nil {
						t.Fatalf("reconcile: %v", err)
					}
				})
				if !killed {
					for _, r := range m.open().Records() {
						if r.InUse() && len(m.ifaces) == 0 && !m.onItsWay(r) {
							t.Fatalf("leaked: %+v", r)
						}
					}
				}
				m.learn()
			},
			"gc": func(t *rapid.T) {
				valid := map[string]bool{}
				for o := range m.ifaces {
					valid[o.ContainerID] = rapid.Bool().Draw(t, "valid")
				}
				if _, err := m.open().GC("net", func(id, _ string) bool { return valid[id] }); err != nil {
					t.Fatalf("GC: %v", err)
				}
				for _, r := range m.open().Records() {
					if r.InUse() && !r.torn && !valid[r.ContainerID] {
						t.Fatalf("leaked after GC: %+v", r)
					}
				}
				m.learn()
			},
			"a record is damaged": func(t *rapid.T) {
				names, _ := m.fs.ReadDir()
				if len(names) == 0 {
					t.Skip("no records")
				}
				slices.Sort(names)
				f := m.fs.names[rapid.SampledFrom(names).Draw(t, "file")]
				m.damaged = true
				f.content = f.content[:rapid.IntRange(0, max(0, len(f.content)-2)).Draw(t, "length")]
				m.learn()
			},
			"": func(t *rapid.T) {
				if err := errors.Join(m.sound(), m.oneFilePerAddress()); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

func compareOwners(a, b Owner) int {
	switch {
	case a.ContainerID < b.ContainerID:
		return -1
	case a.ContainerID > b.ContainerID:
		return 1
	}
	return 0
}
