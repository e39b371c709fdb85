package ipam

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An interface that lives has its address, even if the record was damaged or
// restored and says that it was released.
func TestWantedAddressOfALivingInterface(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/24")
	must(t, w, Request{Owner: pod("a", "c1"), Blocks: blocks})
	s := w.open()
	r := s.Records()[0]
	r.Released = w.clock
	if err := s.put([]Record{r}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.open().Allocate(Request{Owner: pod("b", "c2"), Blocks: blocks, Wanted: []netip.Addr{r.IP}}); !errors.Is(err, ErrWanted) {
		t.Errorf("error %v, want ErrWanted", err)
	}
	if len(w.ifaces) != 1 {
		t.Errorf("%d interfaces live, want the one that did", len(w.ifaces))
	}
}

// Whatever interface has the address goes before another gets it, also one
// that the record does not know.
func TestEveryHolderIsEvicted(t *testing.T) {
	w := newWorld()
	req := Request{Owner: pod("web-0", "c1"), Blocks: prefixes("10.1.1.0/24")}
	must(t, w, req)
	w.ifaces[pod("web-0", "unknown")] = []netip.Addr{netip.MustParseAddr("10.1.1.2")}
	req.ContainerID = "c2"
	want(t, "the same pod", must(t, w, req), "10.1.1.2")
	if len(w.ifaces) != 1 {
		t.Errorf("interfaces with its address: %v", w.ifaces)
	}
}

// A full disk costs an old container nothing.
func TestNoEvictionOnAFullDisk(t *testing.T) {
	w := newWorld()
	req := Request{Owner: pod("web-0", "c1"), Blocks: prefixes("10.1.1.0/24")}
	must(t, w, req)
	w.fs.full = true
	req.ContainerID = "c2"
	if _, err := w.add(req); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if len(w.ifaces) != 1 {
		t.Error("the old container lost its interface")
	}
	if err := w.sound(); err != nil {
		t.Error(err)
	}
	w.fs.full, w.stubborn = false, pod("web-0", "c1")
	if _, err := w.add(req); !errors.Is(err, errStubborn) {
		t.Fatal(err)
	}
	if names, _ := w.fs.ReadDir(); !slices.Equal(names, []string{"10.1.1.2_default_web-0"}) {
		t.Errorf("files after a failed ADD: %v", names)
	}
}

// GC continues after an interface that cannot be removed, whose address stays.
func TestGCContinues(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/24")
	for _, name := range []string{"a", "b", "c"} {
		must(t, w, Request{Owner: pod(name, name), Blocks: blocks})
	}
	w.stubborn = pod("b", "b")
	n, err := w.open().GC("net", func(string, string) bool { return false })
	if n != 2 || !errors.Is(err, errStubborn) {
		t.Errorf("freed %d, %v", n, err)
	}
	if err := w.sound(); err != nil {
		t.Error(err)
	}
}

// An ADD that was killed after a retry had taken its address leaves an interface
// that never came up: it keeps nobody from the address, and Reconcile removes it.
func TestLoser(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/24")
	slow := Request{Owner: pod("web-0", "slow"), Blocks: blocks}
	recs, err := w.allocate(slow)
	if err != nil {
		t.Fatal(err)
	}
	must(t, w, Request{Owner: pod("web-0", "retry"), Blocks: blocks})
	w.connect(slow.Owner, recs) // and here it is killed
	gone(t, w, pod("web-0", "retry"))
	if u := w.open().Usage(blocks, nil); u[0].Used != 0 || u[0].Kept != 1 {
		t.Errorf("usage %+v", u)
	}
	if _, _, err := w.open().Reconcile(); err != nil || len(w.ifaces) != 0 {
		t.Errorf("left: %v, %v", w.ifaces, err)
	}
	want(t, "again", must(t, w, Request{Owner: pod("web-0", "c3"), Blocks: blocks}), "10.1.1.2")
}

// Networks with stores of their own never share an address, and leave each
// other's pods and records alone.
func TestAnotherNetworksStore(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/24")
	theirs := netip.MustParseAddr("10.1.1.2")
	w.elsewhere[theirs] = Owner{Network: "other", ContainerID: "x", IfName: "eth0"}
	want(t, "ours", must(t, w, Request{Owner: pod("a", "a1"), Blocks: blocks}), "10.1.1.3")
	if _, _, err := w.open().Reconcile(); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.open().records[theirs]; ok {
		t.Error("the other network's pod has a record in our store")
	}
	if _, err := w.add(Request{Owner: pod("b", "b"), Blocks: blocks, Wanted: []netip.Addr{theirs}}); !errors.Is(err, ErrWanted) {
		t.Errorf("their address requested: %v", err)
	}
	// Both at the same moment: the record is there, their interface was faster.
	recs, err := w.allocate(Request{Owner: pod("c", "c"), Blocks: blocks})
	if err != nil {
		t.Fatal(err)
	}
	w.elsewhere[recs[0].IP] = Owner{Network: "other", ContainerID: "y", IfName: "eth0"}
	w.connect(recs[0].Owner, recs)
	if err := w.start(recs[0].Owner, recs); !errors.Is(err, ErrShared) {
		t.Errorf("both have %s: %v", recs[0].IP, err)
	}
	// A pod comes back while they have its address.
	gone(t, w, pod("a", "a1"))
	w.elsewhere[netip.MustParseAddr("10.1.1.3")] = Owner{Network: "other", ContainerID: "z", IfName: "eth0"}
	want(t, "a comes back", must(t, w, Request{Owner: pod("a", "a2"), Blocks: blocks}), "10.1.1.5")
}

// Nothing is known of a torn record whose name was cut but its pod's answer to
// it: it stays for that pod, through everything.
func TestTornRecordWithACutName(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/24")
	long := pod(strings.Repeat("p", 253), "c1")
	must(t, w, Request{Owner: long, Blocks: blocks})
	w.damaged = true
	for name, f := range w.fs.names {
		f.content = nil
		if r, err := Decode(name, nil); err != nil || r.Named() || !r.Torn() || !r.For(long) {
			t.Errorf("%s is read as %+v, %v", name, r, err)
		}
	}
	for range 2 { // while its interface lives
		if err := w.open().Repair(); err != nil {
			t.Fatal(err)
		}
		for _, p := range w.open().Fsck(blocks) {
			if !p.Harmless {
				t.Errorf("left after repair: %+v", p)
			}
		}
	}
	if _, err := w.open().GC("net", func(string, string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if err := w.open().Repair(); err != nil {
		t.Fatal(err)
	}
	want(t, "another pod", must(t, w, Request{Owner: pod("other", "o"), Blocks: blocks}), "10.1.1.3")
	long.ContainerID = "c2"
	want(t, "its pod", must(t, w, Request{Owner: long, Blocks: blocks}), "10.1.1.2")
	if r := w.open().Records()[0]; r.Torn() || r.Pod != long.Pod {
		t.Errorf("its record then: %+v", r)
	}
}

// A torn record was released when it was written last, not in 1970: it is not
// the first to be reused.
func TestTornRecordsAge(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/29")
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		must(t, w, Request{Owner: pod(name, name), Blocks: blocks})
	}
	for _, name := range []string{"b", "c", "a", "d", "e"} {
		gone(t, w, pod(name, name))
	}
	w.damaged = true
	w.fs.names["10.1.1.4_default_c"].content = nil
	w.clock = w.clock.Add(time.Hour)
	for _, addr := range []string{"10.1.1.3", "10.1.1.4", "10.1.1.2", "10.1.1.5", "10.1.1.6"} {
		want(t, "the one gone longest", must(t, w, Request{Owner: pod("n"+addr, addr), Blocks: blocks}), addr)
	}
}

// BenchmarkOpen reads a store with all names kept.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	a := netip.MustParseAddr("10.0.0.2")
	for i := range MaxKept {
		r := record(a.String(), pod(strings.Repeat("p", 20), strings.Repeat("c", 64)))
		r.Released = r.Allocated.Add(time.Duration(i))
		if err := os.WriteFile(filepath.Join(dir, r.FileName()), r.Encode(), 0o600); err != nil {
			b.Fatal(err)
		}
		a = a.Next()
	}
	for b.Loop() {
		s, err := Open(dir, newWorld(), Policy{})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
