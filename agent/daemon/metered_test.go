package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/keep"
)

func TestMeteredByInterface(t *testing.T) {
	root, host := t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		"sys/class/net/enx1/uevent":                                    "DEVTYPE=wwan\nINTERFACE=enx1\n",
		"run/NetworkManager/devices/7":                                 "[device]\nmanaged=true\nconnection-uuid=u-7\n",
		"run/NetworkManager/devices/8":                                 "[device]\nconnection-uuid=u-8\n",
		"etc/NetworkManager/system-connections/a.nmconnection":         "[connection]\nid=a\nuuid=u-7\nmetered=1\n",
		"mounted/NetworkManager/devices/9":                             "[device]\nconnection-uuid=u-9\n",
		"mounted/NetworkManager/system-connections/lte":                "[connection]\nuuid=u-9\nmetered=1\n",
		"run/NetworkManager/system-connections/netplan-b.nmconnection": "[connection]\nuuid=u-8\nmetered=2\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(root, "mounted"), filepath.Join(host, "run")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		links []uplinkLink
		paid  bool
		from  string
	}{
		{nil, false, "default route"},
		{[]uplinkLink{{"eth0", "ether", 2}}, false, "default route"},
		{[]uplinkLink{{"eth0", "ether", 2}, {"wwan0", "ether", 3}}, true, "wwan0"},
		{[]uplinkLink{{"dsl", "ppp", 3}}, true, "dsl"},
		{[]uplinkLink{{"enx1", "ether", 4}}, true, "enx1"},
		{[]uplinkLink{{"eth1", "ether", 7}}, true, "NetworkManager"},
		{[]uplinkLink{{"eth2", "ether", 8}}, false, "default route"},
		{[]uplinkLink{{"eth3", "ether", 9}}, true, "NetworkManager"},
	} {
		if got := costOf(c.links, root, host); got.paid != c.paid || !strings.Contains(got.from, c.from) {
			t.Errorf("%v: %+v", c.links, got)
		}
	}
}

// The Node's annotation goes before the file, and one that says neither does not count.
func TestMeteredByOrder(t *testing.T) {
	for _, c := range []struct {
		key        config.Metered
		annotation string
		paid       bool
	}{
		{config.MeteredYes, "", true}, {config.MeteredNo, "", false}, {config.MeteredYes, "false", false}, {config.MeteredNo, "true", true},
		{config.MeteredYes, "perhaps", true},
	} {
		m := newMetered(c.key, func() map[string]string { return map[string]string{keep.MeteredAnnotation: c.annotation} })
		if m.Paid() != c.paid {
			t.Errorf("%+v: %v from %s", c, m.Paid(), m.now.Load().from)
		}
	}
}
