package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/internal/config"
	"edgemesh/manifests"
)

// The unit protects the whole file system except for what the default configuration writes to, and install writes the
// directories of another one there.
func TestUnitWrites(t *testing.T) {
	dir := t.TempDir()
	load := func(text string) config.Config {
		t.Helper()
		path := filepath.Join(dir, "agent.yaml")
		if err := os.WriteFile(path, []byte(text+"nodeName: a\nmembership: {file: /etc/edgemesh/cluster.yaml}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	plain := manifests.AgentUnit("/usr/local")
	if got := manifests.AgentUnit("/usr/local", load("").Writes()...); got != plain {
		t.Errorf("the unit of the defaults differs from the file:\n%s", got)
	}
	if !strings.Contains(plain, "\nProtectSystem=strict\n") {
		t.Error("the unit may write anywhere")
	}
	other := load("stateDir: /data/my edge\ncniConfDir: /var/lib/rancher/k3s/agent/etc/cni/net.d\ncniBinDir: \"\"\ncniDataDir: /data/100%\n")
	got := manifests.AgentUnit("/usr/local", other.Writes()...)
	for _, line := range []string{
		`ExecStartPre=+/bin/mkdir -p -m 0700 "/data/my edge"`,
		`ExecStartPre=+/bin/mkdir -p /run/edgemesh /var/lib/rancher/k3s/agent/etc/cni/net.d /data/100%%`,
		`ReadWritePaths="/data/my edge" /run/edgemesh /var/lib/rancher/k3s/agent/etc/cni/net.d /data/100%% /run/xtables.lock`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s:\n%s", line, got)
		}
	}
}

// Some settings of a unit imply a list of allowed devices on some versions of
// systemd, and /dev/net/tun is on none of them.
func TestUnitAllowsTheTUN(t *testing.T) {
	for line := range strings.Lines(manifests.AgentUnit("/usr/local")) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "ProtectClock", "PrivateDevices", "DevicePolicy", "DeviceAllow":
			t.Errorf("%s closes /dev/net/tun", strings.TrimSpace(line))
		}
	}
}
