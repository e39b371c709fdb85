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
