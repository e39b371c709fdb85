package ipam

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func record(ip string, o Owner) Record {
	return Record{IP: netip.MustParseAddr(ip), Owner: o, Allocated: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Boot: "b"}
}

func TestFileName(t *testing.T) {
	long := strings.Repeat("p", 253)
	for _, c := range []struct {
		name, ip string
		owner    Owner
		want     string
	}{
		{"pod", "10.244.1.5", Owner{Namespace: "default", Pod: "web-0"}, "10.244.1.5_default_web-0"},
		{"colons kept", "fd00:1::5", Owner{Namespace: "default", Pod: "web-0"}, "fd00:1::5_default_web-0"},
		{"no pod", "10.244.1.5", Owner{ContainerID: "abc"}, "10.244.1.5__abc"},
		// SHA-256 of "ns/ppp…": printf 'ns/%0253d' | tr 0 p | sha256sum
		{"too long", "10.244.1.5", Owner{Namespace: "ns", Pod: long},
			"10.244.1.5_ns_" + strings.Repeat("p", 255-17-len("10.244.1.5_ns_")) + "~65630ce7028526c6"},
	} {
		r := record(c.ip, c.owner)
		if got := r.FileName(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if n := len(r.FileName()); n > 255 {
			t.Errorf("%s: %d bytes", c.name, n)
		}
	}
}

func TestDecode(t *testing.T) {
	long := Owner{Network: "n", ContainerID: "c", IfName: "eth0", Namespace: "ns", Pod: strings.Repeat("p", 253)}
	for _, r := range []Record{record("10.1.1.5", pod("web-0", "c1")), record("fd00::5", long),
		record("10.1.1.5", Owner{Network: "n", ContainerID: "c", IfName: "eth0"})} {
		got, err := Decode(r.FileName(), r.Encode())
		if err != nil || got.Torn() || got.Owner != r.Owner || got.IP != r.IP || !got.InUse() {
			t.Errorf("%s: %+v, %v", r.FileName(), got, err)
		}
		for cut := range r.Encode() {
			if cut == len(r.Encode())-1 {
				continue // only the newline is missing
			}
			got, err := Decode(r.FileName(), r.Encode()[:cut])
			if err != nil || !got.Torn() || got.IP != r.IP {
				t.Fatalf("%s cut at %d: %+v, %v", r.FileName(), cut, got, err)
			}
			if !got.For(r.Owner) && r.Named() {
				t.Fatalf("%s cut at %d: not recognised as its pod's", r.FileName(), cut)
			}
		}
	}
	for _, name := range []string{"lock", "last_reserved_ip.0", "", "_", "10.1.1", "10.1.1.05_a_b", "fe80::1%eth0_a_b",
		"::ffff:10.1.1.1_a_b", "FD00::1_a_b", ".tmp0", "10.1.1.5-a-b"} {
		if r, err := Decode(name, []byte("c\r\neth0")); !errors.Is(err, ErrNotRecord) {
			t.Errorf("%q: %+v, %v", name, r, err)
		}
	}
}

// The formats of host-local (plugins v1.9.1, plugins/ipam/host-local/backend/
// disk) and of the store that OpenYurt patched.
func TestDecodeForeign(t *testing.T) {
	for _, c := range []struct{ file, content, ns, pod, id, ifName string }{
		{"10.1.1.5", "3a7f\r\neth0", "", "", "3a7f", "eth0"},
		{"10.1.1.5", "3a7f\neth0\n", "", "", "3a7f", "eth0"},
		{"10.1.1.5", "3a7f", "", "", "3a7f", "eth0"}, // before v0.7
		{"fd00::5", "3a7f\r\nnet1", "", "", "3a7f", "net1"},
		{"10.1.1.5_default_web-0", "3a7f\r\neth0", "default", "web-0", "3a7f", "eth0"},
	} {
		r, err := Decode(c.file, []byte(c.content))
		if err != nil || r.Torn() || !r.InUse() || r.Namespace != c.ns || r.Pod != c.pod || r.ContainerID != c.id || r.IfName != c.ifName {
			t.Errorf("%q %q: %+v, %v", c.file, c.content, r, err)
		}
	}
}

// Times that JSON cannot express, or that leave no later one, stop no pod.
func TestTimesPastTheLastYear(t *testing.T) {
	dir := t.TempDir()
	last := `"9999-12-31T23:59:59.999999999Z"`
	for file, content := range map[string]string{
		"10.1.1.2_default_a": `{"ip":"10.1.1.2","containerID":"c","ifName":"eth0","namespace":"default","pod":"a","released":` + last + `}`,
		"10.1.1.3_default_b": `{"ip":"10.1.1.3","containerID":"c","ifName":"eth0","namespace":"default","pod":"b","allocated":` + last + `}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dir, newWorld(), Policy{})
	if err != nil {
		t.Fatal(err)
	}
	recs, err := s.Allocate(Request{Owner: pod("a", "c2"), Blocks: prefixes("10.1.1.0/24")})
	if err != nil || recs[0].IP.String() != "10.1.1.2" {
		t.Errorf("%v, %v", recs, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, modified := range []time.Time{time.Unix(1<<38, 0), time.Unix(-1<<40, 0)} { // of a file on btrfs, say
		for _, content := range []string{"", "c\neth0"} {
			r, err := readRecord("10.1.1.4_default_c", []byte(content), modified)
			if err != nil || !r.modified.IsZero() {
				t.Errorf("%v: %+v, %v", modified, r, err)
			}
			r.Encode()
		}
	}
}

func FuzzDecode(f *testing.F) {
	r := record("10.1.1.5", pod("web-0", "c1"))
	f.Add(r.FileName(), r.Encode())
	f.Add("10.1.1.5", []byte("3a7f\r\neth0"))
	f.Add("fd00::5_default_web-0", []byte{})
	f.Add("10.1.1.5_default_web-0", []byte("{"))
	f.Add("10.1.1.5__c", []byte(`{"ip":"10.1.1.5","containerID":"c"}`))
	f.Fuzz(func(t *testing.T, file string, content []byte) {
		r, err := Decode(file, content)
		if err != nil {
			return
		}
		if !r.IP.IsValid() || !strings.HasPrefix(file, r.IP.String()) {
			t.Fatalf("%q: address %v", file, r.IP)
		}
		if r.Torn() && r.InUse() {
			t.Fatalf("%q: torn and in use", file)
		}
		if again, err := Decode(r.FileName(), r.Encode()); !r.Torn() && (err != nil || again.Owner != r.Owner) &&
			len(r.FileName()) < maxFileName && !strings.ContainsAny(r.FileName(), "/\x00") && r.ContainerID != "" {
			t.Fatalf("%q: %+v written and read again is %+v, %v", file, r, again, err)
		}
	})
}
