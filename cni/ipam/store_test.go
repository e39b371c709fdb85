package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/cni/conf"
)

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
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "253 in use, 0 kept for gone pods, 253 usable") {
		t.Fatalf("full pool: %v", err)
	}
	// Gone in the order 7, 3, 5: that is the order of reuse, but a pod that
	// comes back has its own.
	for _, i := range []int{7, 3, 5} {
		gone(t, w, pod(fmt.Sprintf("p%d", i), fmt.Sprintf("c%d", i)))
	}
	if _, err := w.open().Allocate(Request{Owner: pod("x", "x"), Blocks: blocks, Wanted: []netip.Addr{netip.MustParseAddr("10.244.1.2")}}); !errors.Is(err, ErrWanted) {
		t.Fatalf("address in use asked for: %v", err)
	}
	want(t, "p3 comes back", must(t, w, req("p3", "c3b")), "10.244.1.5")
	want(t, "gone longest", must(t, w, req("n1", "n1")), "10.244.1.9")
	want(t, "gone next", must(t, w, req("n2", "n2")), "10.244.1.7")
	if _, err := w.add(req("late", "late")); !errors.Is(err, ErrFull) {
		t.Fatalf("full again: %v", err)
	}
}

func TestReuseWithoutDel(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/29")
	for i := range 5 {
		must(t, w, Request{Owner: pod(fmt.Sprintf("p%d", i), fmt.Sprintf("c%d", i)), Blocks: blocks})
	}
	w.powerCut(func(int) int { return 0 }) // and no DEL ever comes
	want(t, "p4 after the reboot", must(t, w, Request{Owner: pod("p4", "c4b"), Blocks: blocks}), "10.1.1.6")
	want(t, "a new pod", must(t, w, Request{Owner: pod("new", "new"), Blocks: blocks}), "10.1.1.2")
	freed, _, err := w.open().Reconcile()
	if err != nil || freed != 3 {
		t.Fatalf("reconcile freed %d, %v; want 3", freed, err)
	}
	want(t, "p3, kept for its name", must(t, w, Request{Owner: pod("p3", "c3b"), Blocks: blocks}), "10.1.1.5")
}

func TestTakeOver(t *testing.T) {
	w := newWorld()
	req := func(id, uid string) Request {
		o := pod("web-0", id)
		o.UID = uid
		return Request{Owner: o, Blocks: prefixes("10.1.1.0/24")}
	}
	want(t, "first", must(t, w, req("c1", "u1")), "10.1.1.2")
	want(t, "retry of the same pod", must(t, w, req("c2", "u1")), "10.1.1.2")
	gone(t, w, pod("web-0", "c1")) // the late DEL of the old container
	if len(w.ifaces) != 1 || !w.open().Records()[0].InUse() {
		t.Fatal("DEL of the old container took the new one's address")
	}
	want(t, "another pod of the name, the old one still runs", must(t, w, req("c3", "u2")), "10.1.1.3")
	_ = w.Evict(pod("web-0", "c3")) // dies without DEL
	want(t, "and comes back", must(t, w, req("c4", "u3")), "10.1.1.3")
	gone(t, w, pod("web-0", "c2"))
	gone(t, w, pod("web-0", "c4"))
	want(t, "the latest address counts", must(t, w, req("c5", "u4")), "10.1.1.3")
}

// A StatefulSet's pod that was replaced by force keeps the address of its new
// object, although the old one's is released after that.
func TestLateReleaseOfAForcedReplacement(t *testing.T) {
	w := newWorld()
	req := func(id, uid string) Request {
		o := pod("web-0", id)
		o.UID = uid
		return Request{Owner: o, Blocks: prefixes("10.1.1.0/24")}
	}
	want(t, "old object", must(t, w, req("c1", "u1")), "10.1.1.2")
	want(t, "new object", must(t, w, req("c2", "u2")), "10.1.1.3")
	gone(t, w, pod("web-0", "c1"))
	want(t, "new container of the new object", must(t, w, req("c3", "u2")), "10.1.1.3")
	gone(t, w, pod("web-0", "c3"))
	want(t, "after DEL", must(t, w, req("c4", "u2")), "10.1.1.3")
}

// The order of releases survives a clock that starts in the past.
func TestClockInThePast(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/29")
	for i := range 5 {
		must(t, w, Request{Owner: pod(fmt.Sprintf("p%d", i), fmt.Sprintf("c%d", i)), Blocks: blocks})
	}
	gone(t, w, pod("p3", "c3"))
	w.setClock(time.Unix(0, 0))
	for _, i := range []int{1, 4, 0} {
		if err := w.del(pod(fmt.Sprintf("p%d", i), fmt.Sprintf("c%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	for i, addr := range []string{"10.1.1.5", "10.1.1.3", "10.1.1.6", "10.1.1.2"} {
		w.clock = time.Unix(0, 0)
		got, err := w.add(Request{Owner: pod(fmt.Sprintf("n%d", i), fmt.Sprintf("n%d", i)), Blocks: blocks})
		if err != nil || got[0].String() != addr {
			t.Errorf("new pod %d: got %v, want %s, %v", i, got, addr, err)
		}
	}
}

// A torn record still has its pod's name, short or cut; one that cannot even
// be read takes its address out of use.
func TestTorn(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/29")
	long := pod(strings.Repeat("p", 253), "c1")
	want(t, "short", must(t, w, Request{Owner: pod("short", "c0"), Blocks: blocks}), "10.1.1.2")
	want(t, "long", must(t, w, Request{Owner: long, Blocks: blocks}), "10.1.1.3")
	w.powerCut(func(int) int { return 0 })
	w.damaged = true
	for _, f := range w.fs.names {
		f.content = f.content[:len(f.content)/2]
	}
	must(t, w, Request{Owner: pod("other", "o"), Blocks: blocks})
	long.ContainerID = "c2"
	want(t, "long again", must(t, w, Request{Owner: long, Blocks: blocks}), "10.1.1.3")
	want(t, "short again", must(t, w, Request{Owner: pod("short", "c3"), Blocks: blocks}), "10.1.1.2")

	p := &pool{records: map[netip.Addr]Record{}, clock: w.clock, now: w.clock, boot: "b"}
	r := tornRecord(netip.MustParseAddr("10.1.1.2"), "10.1.1.2_default_short")
	r.stuck = true
	p.records[r.IP] = r
	if a, err := p.choose(Request{Owner: pod("short", "c4"), Blocks: prefixes("10.1.1.0/30")}, prefixes("10.1.1.0/30")); !errors.Is(err, ErrFull) {
		t.Errorf("an unreadable record's address was given away: %v, %v", a, err)
	}
}

// A slow ADD whose address a retry has taken must not bring up its interface.
func TestTakenOverWhileUnderWay(t *testing.T) {
	w := newWorld()
	req := Request{Owner: pod("web-0", "slow"), Blocks: prefixes("10.1.1.0/24")}
	slow, err := w.open().Allocate(req)
	if err != nil {
		t.Fatal(err)
	}
	must(t, w, Request{Owner: pod("web-0", "retry"), Blocks: req.Blocks})
	if err := holds(w.fs, slow); !errors.Is(err, ErrLost) {
		t.Fatalf("the slow ADD: %v", err)
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

func TestBlocks(t *testing.T) {
	w := newWorld()
	old, both := prefixes("10.1.1.0/29"), prefixes("10.1.1.0/29", "10.9.0.0/24", "fd00::/64")
	want(t, "first", must(t, w, Request{Owner: pod("a", "a1"), Blocks: old}), "10.1.1.2")
	gone(t, w, pod("a", "a1"))
	want(t, "block added", must(t, w, Request{Owner: pod("a", "a2"), Blocks: both}), "10.1.1.2 fd00::2")
	gone(t, w, pod("a", "a2"))
	want(t, "block replaced", must(t, w, Request{Owner: pod("a", "a3"), Blocks: prefixes("10.9.0.0/24")}), "10.9.0.2")
	for i := range 4 {
		must(t, w, Request{Owner: pod(fmt.Sprintf("b%d", i), fmt.Sprintf("b%d", i)), Blocks: old})
	}
	w.clock = w.clock.Add(time.Hour)
	ex := []conf.AddrRange{{First: netip.MustParseAddr("10.9.0.3"), Last: netip.MustParseAddr("10.9.0.9")}}
	got := must(t, w, Request{Owner: pod("z", "z"), Blocks: prefixes("10.9.0.0/24"), Excluded: ex})
	want(t, "around excluded ones", got, "10.9.0.10")
	ex = []conf.AddrRange{{First: netip.MustParseAddr("fd00::"), Last: netip.MustParseAddr("fd00::7fff:ffff:ffff:ffff")}}
	got = must(t, w, Request{Owner: pod("v6", "v6"), Blocks: prefixes("fd00::/64"), Excluded: ex})
	want(t, "around half a /64", got, "fd00::8000:0:0:0")
}

func TestWanted(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/24", "fd00::/64")
	addrs := func(ss ...string) (out []netip.Addr) {
		for _, s := range ss {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	want(t, "one family", must(t, w, Request{Owner: pod("a", "a"), Blocks: blocks, Wanted: addrs("10.1.1.77")}), "10.1.1.77 fd00::2")
	for what, bad := range map[string]netip.Addr{
		"in use": addrs("10.1.1.77")[0], "gateway": addrs("10.1.1.1")[0], "broadcast": addrs("10.1.1.255")[0],
		"network": addrs("10.1.1.0")[0], "elsewhere": addrs("10.1.2.5")[0], "v6 gateway": addrs("fd00::1")[0],
	} {
		if _, err := w.add(Request{Owner: pod("b", "b"), Blocks: blocks, Wanted: []netip.Addr{bad}}); !errors.Is(err, ErrWanted) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := w.add(Request{Owner: pod("b", "b"), Blocks: blocks[:1], Wanted: addrs("fd00::7")}); !errors.Is(err, ErrWanted) {
		t.Errorf("no such family: %v", err)
	}
	if n := len(w.fs.names); n != 2 {
		t.Errorf("refused requests left %d files, want the 2 of pod a", n)
	}
	gone(t, w, pod("a", "a"))
	want(t, "kept for another", must(t, w, Request{Owner: pod("c", "c"), Blocks: blocks, Wanted: addrs("fd00::2", "10.1.1.77")}), "10.1.1.77 fd00::2")
}

func TestFullDisk(t *testing.T) {
	w := newWorld()
	req := Request{Owner: pod("a", "a1"), Blocks: prefixes("10.1.1.0/24", "fd00::/64")}
	must(t, w, req)
	gone(t, w, req.Owner)
	w.fs.full = true
	before, _ := w.fs.ReadDir()
	req.Owner = pod("a", "a2")
	if _, err := w.add(req); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("ADD on a full disk: %v", err)
	}
	after, _ := w.fs.ReadDir()
	slices.Sort(before)
	slices.Sort(after)
	if !slices.Equal(before, after) {
		t.Fatalf("files changed: %v, %v", before, after)
	}
	w.fs.full = false
	want(t, "with space again", must(t, w, req), "10.1.1.2 fd00::2")
}

func TestFsck(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/24")
	must(t, w, Request{Owner: pod("a", "a"), Blocks: blocks}) // .2, alive
	must(t, w, Request{Owner: pod("b", "b"), Blocks: blocks}) // .3, to be torn
	must(t, w, Request{Owner: pod("c", "c"), Blocks: blocks}) // .4, to be lost
	must(t, w, Request{Owner: pod("d", "d"), Blocks: blocks}) // .5, dies without DEL
	put := w.fs.put
	put("10.1.1.3_default_b", "")
	delete(w.fs.names, "10.1.1.4_default_c")
	_ = w.Evict(pod("d", "d"))
	put("10.1.1.2_default_second", "x\r\neth0 y z")
	put("10.1.1.30_default_old", "")
	put("notes.txt", "hello")
	put("10.7.7.7_default_far", "far\r\neth0")
	w.clock = w.clock.Add(time.Hour)
	w.damaged = true

	texts := func() (hard []string, all string) {
		for _, p := range w.open().Fsck(blocks) {
			all += p.File + ": " + p.Text + "\n"
			if !p.Harmless {
				hard = append(hard, p.File+": "+p.Text)
			}
		}
		return hard, all
	}
	_, all := texts()
	for _, part := range []string{
		"10.1.1.3_default_b: content is unusable", ": 10.1.1.4 is in use by container c without a record",
		"10.1.1.5_default_d: in use by container d, which has no interface", "10.1.1.2_default_second: second record",
		"10.1.1.30_default_old: content is unusable", "notes.txt: not an address record",
		"10.7.7.7_default_far: record of another plugin", "10.7.7.7 is outside the node's blocks",
	} {
		if !strings.Contains(all, part) {
			t.Errorf("fsck does not say %q:\n%s", part, all)
		}
	}
	if err := w.open().Repair(); err != nil {
		t.Fatal(err)
	}
	if hard, _ := texts(); len(hard) > 0 {
		t.Errorf("left after repair: %v", hard)
	}
	if err := errors.Join(w.sound(), w.oneFilePerAddress()); err != nil {
		t.Error(err)
	}
	want(t, "name of a torn record", must(t, w, Request{Owner: pod("old", "o2"), Blocks: blocks}), "10.1.1.30")
	if _, ok := w.fs.names["notes.txt"]; !ok {
		t.Error("repair removed a file that is not ours")
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

func TestRealFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "store")
	w := newWorld()
	s, err := Open(dir, w, Policy{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(dir, time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Errorf("second lock: %v", err)
	}
	recs, err := s.Allocate(Request{Owner: pod("a", "a"), Blocks: prefixes("10.1.1.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w.ifaces[recs[0].Owner] = []netip.Addr{recs[0].IP}
	// A folder in the place of a record, and rubbish, stop nobody.
	if err := os.MkdirAll(filepath.Join(dir, "10.1.1.3_default_b", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".tmp0"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "10.1.1.6_default_pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if recs, err := Look(dir); err != nil || len(recs) != 3 {
		t.Errorf("without the lock: %v, %v", recs, err)
	}
	s, err = Open(dir, w, Policy{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	recs, err = s.Allocate(Request{Owner: pod("b", "b"), Blocks: prefixes("10.1.1.0/29")})
	if err != nil || recs[0].IP != netip.MustParseAddr("10.1.1.4") {
		t.Fatalf("%+v, %v", recs, err)
	}
	names, _ := os.ReadDir(dir)
	var got []string
	for _, n := range names {
		got = append(got, n.Name())
	}
	want(t, "files", strings.Join(got, " "), "10.1.1.2_default_a 10.1.1.3_default_b 10.1.1.4_default_b 10.1.1.6_default_pipe")
}
