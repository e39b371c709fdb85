package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/cni/conf"
)

func TestFullPool(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.244.1.0/24")
	req := func(name, id string) Request { return Request{Owner: pod(name, id), Blocks: blocks} }
	seen := map[string]bool{}
	for i := range 253 {
		seen[must(t, w, req(fmt.Sprintf("p%d", i), fmt.Sprintf("c%d", i)))] = true
	}
	if len(seen) != 253 || seen["10.244.1.0"] || seen["10.244.1.1"] || seen["10.244.1.255"] {
		t.Fatalf("%d different addresses, want 253 without network, gateway and broadcast", len(seen))
	}
	_, err := w.add(req("late", "late"))
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "253 in use, 0 kept for deleted pods, 253 usable") {
		t.Fatalf("full pool: %v", err)
	}
	// Gone in the order 7, 3, 5: that is the order of reuse, but a pod that
	// comes back has its own.
	for _, i := range []int{7, 3, 5} {
		gone(t, w, pod(fmt.Sprintf("p%d", i), fmt.Sprintf("c%d", i)))
	}
	if _, err := w.open().Allocate(Request{Owner: pod("x", "x"), Blocks: blocks, Wanted: []netip.Addr{netip.MustParseAddr("10.244.1.2")}}); !errors.Is(err, ErrWanted) {
		t.Fatalf("address in use requested: %v", err)
	}
	want(t, "p3 comes back", must(t, w, req("p3", "c3b")), "10.244.1.5")
	want(t, "gone longest", must(t, w, req("n1", "n1")), "10.244.1.9")
	want(t, "gone next", must(t, w, req("n2", "n2")), "10.244.1.7")
	if _, err := w.add(req("late", "late")); !errors.Is(err, ErrFull) {
		t.Fatalf("full again: %v", err)
	}
}

func TestKeepPolicies(t *testing.T) {
	blocks := prefixes("10.1.1.0/24")
	again := func(t *testing.T, p Policy, name string, pause time.Duration) bool {
		w := newWorld()
		w.policy = p
		first := must(t, w, Request{Owner: pod(name, "c1"), Blocks: blocks})
		must(t, w, Request{Owner: pod("other", "o"), Blocks: blocks})
		gone(t, w, pod(name, "c1"))
		w.clock = w.clock.Add(pause)
		must(t, w, Request{Owner: pod("another", "a"), Blocks: blocks})
		return must(t, w, Request{Owner: pod(name, "c2"), Blocks: blocks}) == first
	}
	sets := Policy{Keep: func(o Owner) bool { return conf.StatefulSetPod(o.Pod) }}
	none := Policy{Keep: func(Owner) bool { return false }}
	for _, c := range []struct {
		what   string
		policy Policy
		pod    string
		pause  time.Duration
		kept   bool
	}{
		{"all", Policy{}, "web-5d9c7b7f6b-x2x9z", 24 * time.Hour, true},
		{"statefulset", sets, "web-0", 0, true},
		{"statefulset, deployment", sets, "web-5d9c7b7f6b-x2x9z", 0, false},
		{"none", none, "web-0", 0, false},
		{"keepFor, in time", Policy{For: time.Hour}, "web-0", 30 * time.Minute, true},
		{"keepFor, too late", Policy{For: time.Hour}, "web-0", 2 * time.Hour, false},
	} {
		if got := again(t, c.policy, c.pod, c.pause); got != c.kept {
			t.Errorf("%s: kept %v, want %v", c.what, got, c.kept)
		}
	}
}

func TestForgetAndUsage(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/28", "fd00::/64")
	must(t, w, Request{Owner: pod("a", "a"), Blocks: blocks})
	must(t, w, Request{Owner: pod("b", "b"), Blocks: blocks})
	gone(t, w, pod("b", "b"))
	u := w.open().Usage(blocks, nil)
	if len(u) != 2 || u[0].Size != 13 || u[0].Used != 1 || u[0].Kept != 1 || !u[0].Oldest.Equal(w.clock) || u[1].Size != many {
		t.Errorf("usage %+v", u)
	}
	all := func(Record) bool { return true }
	if _, err := w.open().Forget(all, false); !errors.Is(err, ErrInUse) {
		t.Errorf("forget a living pod: %v", err)
	}
	if n, err := w.open().Forget(all, true); n != 4 || err != nil || len(w.ifaces) != 0 {
		t.Errorf("forced: %d, %v, %d interfaces left", n, err, len(w.ifaces))
	}
}

// Names are kept up to a number per family, the latest of them.
func TestManyKept(t *testing.T) {
	w := newWorld()
	var recs []Record
	a, b := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	for i := range MaxKept + 10 {
		for _, ip := range []netip.Addr{a, b} {
			recs = append(recs, Record{IP: ip, Owner: pod(fmt.Sprintf("p%d", i), "c"), Boot: "b",
				Allocated: w.clock, Released: w.clock.Add(time.Duration(i))})
		}
		a, b = a.Next(), b.Next()
	}
	if err := w.open().put(recs[:len(recs)-19]); err != nil { // v6 is not over the limit yet
		t.Fatal(err)
	}
	must(t, w, Request{Owner: pod("new", "new"), Blocks: prefixes("10.0.0.0/16")})
	s := w.open()
	if n := len(s.Records()); n != 2*MaxKept+1 {
		t.Errorf("%d records, want the new one and the %d latest of each family", n, MaxKept)
	}
	if _, ok := s.records[netip.MustParseAddr("10.0.0.2")]; ok {
		t.Error("the oldest is still there")
	}
	if _, ok := s.records[netip.MustParseAddr("fd00::2")]; !ok {
		t.Error("one of the other family had to go")
	}
}
