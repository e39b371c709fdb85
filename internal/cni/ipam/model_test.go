package ipam

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is what the store should remember, kept in the simplest form: per pod
// the addresses it last got, and per address which pod had it last.
type model struct {
	*world
	blocks []netip.Prefix
	serial int
	last   map[string][]netip.Addr // pod → its latest addresses
	holder map[netip.Addr]string   // address → the pod that got it latest
	torn   bool                    // records were damaged, so names may be lost
	slow   []slowAdd               // not finished
	unsure map[string]bool         // pods whose latest ADD did not return
}

// slowAdd is an ADD that has its record, and maybe its interface.
type slowAdd struct {
	owner Owner
	recs  []Record
}

// begin is the first part of a slow ADD.
func (m *model) begin(name string) {
	m.serial++
	o := pod(name, fmt.Sprintf("c%d", m.serial))
	if recs, err := m.allocate(m.request(o)); err == nil {
		m.slow = append(m.slow, slowAdd{o, recs})
	}
	m.learn()
}

// proceed is the next part: the interface, or the last look before its start.
// Killed ones never continue.
func (m *model) proceed(i int, killed bool) {
	a := m.slow[i]
	switch _, connected := m.ifaces[a.owner]; {
	case killed:
	case !connected:
		m.connect(a.owner, a.recs)
		return
	default:
		_ = m.start(a.owner, a.recs) // fails when the address is lost; sound looks at the rest
	}
	m.slow = slices.Delete(m.slow, i, i+1)
	m.learn()
}

func (m *model) request(o Owner) Request { return Request{Owner: o, Blocks: m.blocks} }

// add makes a pod's new container and checks the address it gets.
func (m *model) add(t *rapid.T, name string, crash int) {
	m.serial++
	o := pod(name, fmt.Sprintf("c%d", m.serial))
	m.clock = m.clock.Add(2 * startGrace) // nothing earlier counts as unfinished
	var got []netip.Addr
	var err error
	m.fs.dieAt = crash
	if m.killed(func() { got, err = m.world.add(m.request(o)) }) {
		// What the killed call did is only known from the disk, if it is there.
		m.unsure[name] = true
		m.learn()
		return
	}
	if err != nil {
		if !errors.Is(err, ErrFull) {
			t.Fatalf("ADD %s: %v", name, err)
		}
		for _, b := range m.blocks {
			if m.taken(b) == usable([]netip.Prefix{b}, nil) {
				return
			}
		}
		t.Fatalf("ADD %s: %v, but there are addresses that nobody uses", name, err)
	}
	for i, a := range got {
		first, last := span(m.blocks[i])
		if a.Less(first) || last.Less(a) {
			t.Fatalf("ADD %s: %s is not in %s", name, a, m.blocks[i])
		}
	}
	if want := m.last[name]; want != nil && !m.torn && m.mine(name, want) && !slices.Equal(want, got) {
		t.Fatalf("ADD %s: got %v, had %v, which nobody else got meanwhile", name, got, want)
	}
	delete(m.unsure, name)
	m.learn()
}

// mine reports whether the pod was the last to get these addresses.
func (m *model) mine(name string, addrs []netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		_, taken := m.elsewhere[a]
		return taken || m.holder[a] != name
	})
}

// running reports whether r's ADD may still run.
func (m *model) running(r Record) bool {
	age := m.clock.Sub(r.Allocated)
	return r.Boot == m.boot && age >= 0 && age < startGrace
}

// taken counts the addresses of b that nobody can have.
func (m *model) taken(b netip.Prefix) uint64 {
	all := map[netip.Addr]bool{}
	for _, addrs := range m.ifaces {
		for _, a := range addrs {
			all[a] = true
		}
	}
	for a := range m.elsewhere {
		all[a] = true
	}
	s := m.open()
	for _, r := range s.Records() {
		if r.InUse() && (s.pool().alive(r) || m.running(r)) {
			all[r.IP] = true
		}
	}
	var n uint64
	for a := range all {
		if b.Contains(a) {
			n++
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
		whole := len(recs) == len(m.blocks)
		for i, b := range m.blocks {
			whole = whole && b.Contains(recs[i].IP)
		}
		if whole {
			m.last[pod] = nil
			for _, r := range recs {
				m.last[pod] = append(m.last[pod], r.IP)
			}
		} else {
			delete(m.last, pod) // killed midway, or a family ran short
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
		m := &model{world: newWorld(), last: map[string][]netip.Addr{}, holder: map[netip.Addr]string{}, unsure: map[string]bool{}}
		m.blocks = rapid.SampledFrom([][]netip.Prefix{
			prefixes("10.1.1.0/28"),
			prefixes("10.1.1.0/29", "fd00:1::/64"),
			prefixes("fd00:1::/124"),
		}).Draw(t, "blocks")
		pods := rapid.SampledFrom([]string{"web-0", "web-1", "db-0", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"})
		crash := rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
		anyAddress := rapid.Custom(func(t *rapid.T) netip.Addr {
			a, _ := span(m.blocks[rapid.IntRange(0, len(m.blocks)-1).Draw(t, "block")])
			for range rapid.IntRange(0, 4).Draw(t, "n") {
				a = a.Next()
			}
			return a
		})
		// The node may have belonged to another plugin.
		for i, a := range rapid.SliceOfNDistinct(anyAddress, 0, 4, rapid.ID[netip.Addr]).Draw(t, "strangers") {
			name := rapid.SampledFrom([]string{"", []string{"web-0", "a", "b", "elsewhere"}[i]}).Draw(t, "name")
			m.stranger(a.String(), fmt.Sprintf("s%d", i), name)
		}
		m.learn()
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
			slices.SortFunc(all, compareOwners)
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
			"slow add":       func(t *rapid.T) { m.begin(pods.Draw(t, "pod")) },
			"slow add continues": func(t *rapid.T) {
				if len(m.slow) == 0 {
					t.Skip("none")
				}
				m.proceed(rapid.IntRange(0, len(m.slow)-1).Draw(t, "which"), rapid.IntRange(0, 3).Draw(t, "killed") == 0)
			},
			"another network's pod": func(t *rapid.T) {
				a := anyAddress.Draw(t, "address")
				_, theirs := m.elsewhere[a]
				_, stranger := m.strangers[a]
				if theirs {
					delete(m.elsewhere, a)
				} else if len(m.open().living[a]) == 0 && !stranger {
					m.serial++
					m.elsewhere[a] = Owner{Network: "other", ContainerID: fmt.Sprintf("c%d", m.serial), IfName: "net1"}
				}
			},
			"reboot": func(t *rapid.T) {
				m.slow = nil
				clear(m.elsewhere)
				m.powerCut(pick)
				for name := range m.unsure {
					delete(m.last, name)
				}
				m.learn()
			},
			"clock starts in the past": func(t *rapid.T) { m.setClock(time.Unix(0, 0)) },
			"reconcile": func(t *rapid.T) {
				m.clock = m.clock.Add(2 * startGrace)
				m.fs.dieAt = crash.Draw(t, "crash")
				killed := m.killed(func() {
					if _, _, err := m.open().Reconcile(); err != nil {
						t.Fatalf("reconcile: %v", err)
					}
				})
				if !killed {
					s := m.open()
					for _, r := range s.Records() {
						if r.InUse() && !s.pool().alive(r) && !m.running(r) {
							t.Fatalf("leaked: %+v", r)
						}
					}
					if len(s.losers) > 0 {
						t.Fatalf("interfaces without an address left: %v", s.losers)
					}
				}
				m.learn()
			},
			"gc": func(t *rapid.T) {
				valid := map[string]bool{}
				for _, o := range slices.SortedFunc(maps.Keys(m.ifaces), compareOwners) {
					valid[o.ContainerID] = rapid.Bool().Draw(t, "valid")
				}
				for _, a := range slices.SortedFunc(maps.Keys(m.strangers), netip.Addr.Compare) {
					id := m.strangers[a].ContainerID
					if valid[id] = rapid.Bool().Draw(t, "valid"); !valid[id] {
						delete(m.strangers, a)
					}
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
				names = slices.DeleteFunc(names, func(name string) bool { // nothing else knows of a stranger
					r, err := Decode(name, nil)
					_, stranger := m.strangers[r.IP]
					return err != nil || stranger
				})
				if len(names) == 0 {
					t.Skip("no records")
				}
				slices.Sort(names)
				f := m.fs.names[rapid.SampledFrom(names).Draw(t, "file")]
				m.damaged = true
				most := max(0, len(f.content)-2)
				if !bytes.HasPrefix(f.content, []byte("{")) {
					most = 0 // any part of another plugin's record is one, of another container
				}
				f.content = f.content[:rapid.IntRange(0, most).Draw(t, "length")]
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

func compareOwners(a, b Owner) int { return cmp.Compare(a.ContainerID, b.ContainerID) }
