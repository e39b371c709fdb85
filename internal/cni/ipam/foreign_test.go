package ipam

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMigration(t *testing.T) {
	w := newWorld()
	blocks := prefixes("10.1.1.0/24")
	for name, content := range map[string]string{
		"10.1.1.9":               "hostlocal\r\neth0",
		"10.1.1.20_default_db-0": "yurt\r\neth0",
		"lock":                   "",
		"last_reserved_ip.0":     "10.1.1.20",
	} {
		w.fs.put(name, content)
	}
	s := w.open()
	for _, r := range s.Records() {
		if !s.pool().alive(r) {
			t.Errorf("%s: a foreign container counts as gone during the boot it was found in", r.IP)
		}
	}
	want(t, "OpenYurt's pod", must(t, w, Request{Owner: pod("db-0", "new"), Blocks: blocks}), "10.1.1.20")
	if got := must(t, w, Request{Owner: pod("x", "x"), Blocks: blocks}); got == "10.1.1.9" {
		t.Fatal("the address of a running container was given away")
	}
	// host-local does not know the pod, the runtime's DEL does.
	gone(t, w, Owner{Network: "net", ContainerID: "hostlocal", IfName: "eth0", Namespace: "default", Pod: "web-0"})
	want(t, "host-local's pod", must(t, w, Request{Owner: pod("web-0", "web2"), Blocks: blocks}), "10.1.1.9")
	for _, left := range []string{"lock", "last_reserved_ip.0"} {
		if _, ok := w.fs.names[left]; !ok {
			t.Errorf("%s, which is not ours, is gone", left)
		}
	}
}

func TestReadForeign(t *testing.T) {
	dir, results := t.TempDir(), t.TempDir()
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "10.1.1.9"), "abc\r\neth0")
	write(filepath.Join(dir, "10.1.1.10"), "def\r\neth0")
	write(filepath.Join(dir, "lock"), "")
	write(filepath.Join(results, "cbr0-abc-eth0"), `{"kind":"cniCacheV1","containerId":"abc","ifName":"eth0","networkName":"cbr0",
		"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","web-0"]],"result":{}}`)
	write(filepath.Join(results, "torn"), `{"kind":`)
	recs, err := ReadForeign(dir, results)
	if err != nil || len(recs) != 2 {
		t.Fatalf("%+v, %v", recs, err)
	}
	w := newWorld()
	if n, err := w.open().Import(recs); n != 2 || err != nil {
		t.Fatalf("imported %d, %v", n, err)
	}
	if n, err := w.open().Import(recs); n != 0 || err != nil {
		t.Fatalf("imported again %d, %v", n, err)
	}
	want(t, "named by the cache", must(t, w, Request{Owner: pod("web-0", "n"), Blocks: prefixes("10.1.1.0/24")}), "10.1.1.9")
}

// Leases that host-local left before a power cut are of containers that are
// gone, which no DEL may ever report.
func TestStaleLeases(t *testing.T) {
	blocks := prefixes("10.1.1.0/29")
	w := newWorld()
	for i, name := range []string{"", "", "db-0", "", ""} {
		w.stranger(fmt.Sprintf("10.1.1.%d", i+2), fmt.Sprintf("c%d", i), name)
		w.clock = w.clock.Add(time.Second)
	}
	w.powerCut(func(int) int { return 0 })
	want(t, "the pod of OpenYurt's record", must(t, w, Request{Owner: pod("db-0", "d"), Blocks: blocks}), "10.1.1.4")
	want(t, "the oldest lease's address", must(t, w, Request{Owner: pod("new", "n"), Blocks: blocks}), "10.1.1.2")
	freed, _, err := w.open().Reconcile()
	if err != nil || freed != 3 {
		t.Errorf("reconcile freed %d, %v; want the 3 stale ones", freed, err)
	}
}

// Where no battery keeps the clock, pods start before it is set: their leases
// look older than the boot.
func TestLeasesFromBeforeTheClockWasSet(t *testing.T) {
	w := newWorld()
	w.setClock(time.Unix(100, 0))
	w.stranger("10.1.1.2", "lives", "")
	w.clock = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	blocks := prefixes("10.1.1.0/30")
	for _, name := range []string{"a", "b"} {
		got, err := w.add(Request{Owner: pod(name, name), Blocks: blocks})
		if err == nil {
			t.Fatalf("%s got %v of a pod that lives", name, got)
		}
	}
	if err := w.sound(); err != nil {
		t.Error(err)
	}
}

// The first moment of this boot is not after either sign of it.
func TestFirstMoment(t *testing.T) {
	first := firstMoment()
	info, err := os.Stat("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if first.IsZero() || first.After(info.ModTime()) || !first.Before(time.Now()) {
		t.Errorf("first moment of this boot: %v; device files are of %v", first, info.ModTime())
	}
}

// Names that host-local does not write down are in the runtime's cache, and
// are found when a store is read in place too.
func TestNamesFromTheCache(t *testing.T) {
	w := newWorld()
	w.stranger("10.1.1.9", "abc", "")
	w.powerCut(func(int) int { return 0 })
	s := w.open()
	s.results = t.TempDir()
	cached := `{"containerId":"abc","ifName":"eth0","cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","web-0"]]}`
	if err := os.WriteFile(filepath.Join(s.results, "x"), []byte(cached), 0o600); err != nil {
		t.Fatal(err)
	}
	if freed, _, err := s.Reconcile(); freed != 1 || err != nil {
		t.Fatalf("freed %d, %v", freed, err)
	}
	want(t, "web-0", must(t, w, Request{Owner: pod("web-0", "n"), Blocks: prefixes("10.1.1.0/24")}), "10.1.1.9")
}

// A directory with rubbish: torn records with names are as good as kept ones, and
// two files of an address make one record.
func TestImportOfDamagedStore(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"10.1.1.9_default_torn": "", "10.1.1.10": "", "10.1.1.11": "c\r\neth0", "10.1.1.11_default_twice": "c\r\neth0",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	recs, err := ReadForeign(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	if n, err := w.open().Import(recs); n != 2 || err != nil {
		t.Fatalf("imported %d, %v; want the torn one with a name and one of the two", n, err)
	}
	if err := w.oneFilePerAddress(); err != nil {
		t.Error(err)
	}
	s := w.open()
	for _, r := range s.Records() {
		if r.Torn() {
			t.Errorf("imported as torn: %+v", r)
		}
	}
	if r := s.records[netip.MustParseAddr("10.1.1.9")]; r.InUse() || time.Since(r.Released) > time.Hour {
		t.Errorf("the torn one counts as %s since %s", r.state(), r.Released)
	}
	want(t, "the torn one's pod", must(t, w, Request{Owner: pod("torn", "n"), Blocks: prefixes("10.1.1.0/24")}), "10.1.1.9")
}
