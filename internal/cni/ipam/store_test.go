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

	"edgemesh/internal/cni/conf"
)

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

// web0 is a request of a pod of that name, by container and UID.
func web0(id, uid string) Request {
	o := pod("web-0", id)
	o.UID = uid
	return Request{Owner: o, Blocks: prefixes("10.1.1.0/24")}
}

func TestTakeOver(t *testing.T) {
	w := newWorld()
	want(t, "first", must(t, w, web0("c1", "u1")), "10.1.1.2")
	want(t, "retry of the same pod", must(t, w, web0("c2", "u1")), "10.1.1.2")
	gone(t, w, pod("web-0", "c1")) // the late DEL of the old container
	if len(w.ifaces) != 1 || !w.open().Records()[0].InUse() {
		t.Fatal("DEL of the old container took the new one's address")
	}
	want(t, "another pod of the name, the old one still runs", must(t, w, web0("c3", "u2")), "10.1.1.3")
	_ = w.Evict(pod("web-0", "c3")) // dies without DEL
	want(t, "and comes back", must(t, w, web0("c4", "u3")), "10.1.1.3")
	gone(t, w, pod("web-0", "c2"))
	gone(t, w, pod("web-0", "c4"))
	want(t, "the latest address counts", must(t, w, web0("c5", "u4")), "10.1.1.3")
}

// A StatefulSet's pod that was replaced by force keeps the address of its new
// object, although the old one's is released after that.
func TestLateReleaseOfAForcedReplacement(t *testing.T) {
	w := newWorld()
	want(t, "old object", must(t, w, web0("c1", "u1")), "10.1.1.2")
	want(t, "new object", must(t, w, web0("c2", "u2")), "10.1.1.3")
	gone(t, w, pod("web-0", "c1"))
	want(t, "new container of the new object", must(t, w, web0("c3", "u2")), "10.1.1.3")
	gone(t, w, pod("web-0", "c3"))
	want(t, "after DEL", must(t, w, web0("c4", "u2")), "10.1.1.3")
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

func TestRealDirectory(t *testing.T) {
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
	// A directory in the place of a record, and rubbish, stop nobody.
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
