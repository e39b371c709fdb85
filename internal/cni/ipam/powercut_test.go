package ipam

import (
	"errors"
	"fmt"
	"testing"
)

// odometer goes through all outcomes of a power cut: run by run, its pick
// answers with the next combination.
type odometer struct {
	digits, bases []int
	at            int
}

func (o *odometer) pick(n int) int {
	if o.at == len(o.digits) {
		o.digits, o.bases = append(o.digits, 0), append(o.bases, n)
	}
	o.at++
	return o.digits[o.at-1]
}

// next turns to the next combination; false after the last.
func (o *odometer) next() bool {
	o.at = 0
	for i := len(o.digits) - 1; i >= 0; i-- {
		if o.digits[i]++; o.digits[i] < o.bases[i] {
			o.digits, o.bases = o.digits[:i+1], o.bases[:i+1]
			return true
		}
	}
	return false
}

// foreigners are containers of the plugins that were here before, host-local's
// without a name.
func foreigners(_ *testing.T, w *world) {
	w.stranger("10.1.1.4", "yurt", "db")
	w.stranger("fd00::4", "yurt", "db")
	w.stranger("10.1.1.5", "local", "")
	w.stranger("fd00::5", "local", "")
}

// unnamed is the container that host-local does not know the pod of.
func unnamed(pod string) Owner {
	return Owner{Network: "net", ContainerID: "local", IfName: "eth0", Namespace: "default", Pod: pod}
}

// late is the DEL that runtimes call after a reboot.
func late(t *testing.T, w *world) { gone(t, w, unnamed("web")) }

// Each kill while records are taken over leaves every container its address.
func TestKilledWhileTakingOver(t *testing.T) {
	blocks := prefixes("10.1.1.0/29", "fd00::/125")
	for step := 1; ; step++ {
		w := newWorld()
		foreigners(t, w)
		w.fs.dieAt = step
		if !w.killed(func() { _, _, _ = w.open().Reconcile() }) {
			if step < 20 {
				t.Errorf("%d steps for 4 records", step)
			}
			return
		}
		for i := range 6 {
			name := fmt.Sprintf("p%d", i)
			_, err := w.add(Request{Owner: pod(name, name), Blocks: blocks})
			if err := errors.Join(w.sound(), w.oneFilePerAddress()); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			if i < 3 != (err == nil) || err != nil && !errors.Is(err, ErrFull) {
				t.Fatalf("step %d, pod %d: %v; 3 of 5 addresses are free", step, i, err)
			}
		}
	}
}

// Two calls are killed one after the other, each at any step, and then the power
// fails: the second builds on changes of the first that are not on the disk.
func TestPowerCutAfterTwoKills(t *testing.T) {
	blocks := prefixes("10.1.1.0/30") // one address
	cuts := 0
	for first, fewer := 1, true; fewer; first++ {
		for second := 1; ; second++ {
			var ended bool
			for o := (&odometer{}); ; {
				w := newWorld()
				must(t, w, Request{Owner: pod("old", "old"), Blocks: blocks})
				gone(t, w, pod("old", "old"))
				for i, step := range []int{first, second} {
					w.fs.dieAt = step
					if !w.killed(func() {
						_, err := w.allocate(Request{Owner: pod(fmt.Sprintf("p%d", i), fmt.Sprint(i)), Blocks: blocks})
						if err != nil {
							t.Fatal(err)
						}
					}) {
						ended = true // it has fewer steps
						fewer = fewer && i == 1
					}
				}
				w.powerCut(o.pick)
				cuts++
				if err := errors.Join(w.sound(), w.oneFilePerAddress()); err != nil {
					t.Fatalf("steps %d and %d, survivors %v: %v", first, second, o.digits, err)
				}
				if len(w.fs.names) == 0 {
					t.Fatalf("steps %d and %d, survivors %v: no record left", first, second, o.digits)
				}
				if !o.next() {
					break
				}
			}
			if ended {
				break
			}
		}
	}
	t.Logf("%d power cuts", cuts)
}

// Power fails at each file-system step of each change, and every part of what
// was not synced is lost or not. Afterwards no address has two files, pods
// that the change did not concern have their addresses, and so has the pod
// that it did, once it comes again.
func TestPowerCutEverywhere(t *testing.T) {
	blocks := prefixes("10.1.1.0/29", "fd00::/125")
	req := func(name, id string) Request { return Request{Owner: pod(name, id), Blocks: blocks} }
	for name, c := range map[string]struct {
		prepare func(*testing.T, *world)
		change  func(*world) error
		late    func(*testing.T, *world) // what comes after the reboot
		// again is a pod and the addresses it must have after all.
		again, addrs string
	}{
		"first ADD": {
			prepare: func(*testing.T, *world) {},
			change:  func(w *world) error { _, err := w.add(req("web", "w1")); return err },
			again:   "web",
		},
		"ADD with the oldest's addresses": {
			prepare: func(t *testing.T, w *world) {
				for i := range 4 {
					must(t, w, req(fmt.Sprintf("g%d", i), fmt.Sprintf("g%d", i)))
					gone(t, w, pod(fmt.Sprintf("g%d", i), fmt.Sprintf("g%d", i)))
				}
			},
			change: func(w *world) error { _, err := w.add(req("web", "w1")); return err },
			again:  "g3", addrs: "10.1.1.6 fd00::6",
		},
		"ADD instead of an old container": {
			prepare: func(t *testing.T, w *world) { must(t, w, req("web", "w1")) },
			change:  func(w *world) error { _, err := w.add(req("web", "w2")); return err },
			again:   "web", addrs: "10.1.1.3 fd00::3",
		},
		"DEL": {
			prepare: func(t *testing.T, w *world) { must(t, w, req("web", "w1")) },
			change:  func(w *world) error { return w.del(pod("web", "w1")) },
			again:   "web", addrs: "10.1.1.3 fd00::3",
		},
		"taking over another plugin's records": {
			prepare: foreigners,
			change:  func(w *world) error { _, _, err := w.open().Reconcile(); return err },
			late:    late,
			again:   "web", addrs: "10.1.1.5 fd00::5",
		},
		"taking over at an ADD, OpenYurt's record": {
			prepare: foreigners,
			change:  func(w *world) error { _, err := w.add(req("new", "n1")); return err },
			again:   "db", addrs: "10.1.1.4 fd00::4",
		},
		"taking over at the DEL that has the name": {
			prepare: foreigners,
			change:  func(w *world) error { return w.del(unnamed("web")) },
			late:    late,
			again:   "web", addrs: "10.1.1.5 fd00::5",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cuts := 0
			for step := 1; ; step++ {
				done := false
				for o := (&odometer{}); ; {
					w := newWorld()
					must(t, w, req("stay", "s1"))
					c.prepare(t, w)
					w.fs.dieAt = step
					if !w.killed(func() {
						if err := c.change(w); err != nil {
							t.Fatal(err)
						}
					}) {
						done = true // the change has fewer steps
						break
					}
					cuts++
					w.powerCut(o.pick)
					fail := func(err error) {
						if err != nil {
							t.Fatalf("step %d, survivors %v: %v", step, o.digits, err)
						}
					}
					fail(errors.Join(w.sound(), w.oneFilePerAddress()))
					if c.late != nil {
						c.late(t, w)
					}
					if got := must(t, w, req("stay", "s2")); got != "10.1.1.2 fd00::2" {
						fail(fmt.Errorf("the pod that stayed came back with %s", got))
					}
					if got := must(t, w, req(c.again, "again")); c.addrs != "" && got != c.addrs {
						fail(fmt.Errorf("%s came back with %s, had %s", c.again, got, c.addrs))
					}
					if !o.next() {
						break
					}
				}
				if done {
					break
				}
			}
			t.Logf("%d power cuts", cuts)
		})
	}
}
