package sysctl

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/nstest"
)

func TestMemory(t *testing.T) {
	nstest.Enter(t)
	m := NewMemory(t.TempDir())
	if err := m.remember("net/ipv4/ip_forward"); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "sysctl -qw net.ipv4.ip_forward=1")
	if err := m.remember("net/ipv4/ip_forward"); err != nil { // the first value counts
		t.Fatal(err)
	}
	if r, err := m.all(); r.Values["net/ipv4/ip_forward"] != "0" || err != nil {
		t.Errorf("remembered %v, %v", r, err)
	}

	b, err := os.ReadFile(m.path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"torn":         string(b[:len(b)/2]),
		"empty":        "",
		"null values":  strings.Replace(string(b), `"values"`, `"other"`, 1),
		"earlier boot": otherBoot(t, b),
	} {
		if err := os.WriteFile(m.path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := m.all(); len(r.Values) > 0 || err != nil {
			t.Errorf("%s: still remembered (%v)", name, err)
		}
	}

	if err := os.WriteFile(m.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(); err != nil {
		t.Fatal(err)
	}
	if v, _ := Read("net/ipv4/ip_forward"); v != "0" {
		t.Errorf("ip_forward is %s after restore", v)
	}
	if _, err := os.Stat(m.path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}

func otherBoot(t *testing.T, b []byte) string {
	t.Helper()
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	r.BootID = "00000000-0000-0000-0000-000000000000"
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestRestoreOrder(t *testing.T) {
	have := restoreOrder(map[string]string{
		"net/ipv6/conf/eth0/accept_ra": "1", "net/ipv6/conf/eth0/forwarding": "0", "net/ipv6/conf/all/forwarding": "0",
		"net/ipv4/conf/all/accept_redirects": "1", "net/ipv4/ip_forward": "0",
	})
	want := []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/ipv4/conf/all/accept_redirects", "net/ipv6/conf/eth0/forwarding", "net/ipv6/conf/eth0/accept_ra",
	}
	if !slices.Equal(have, want) {
		t.Errorf("order is %v, want %v", have, want)
	}
}
