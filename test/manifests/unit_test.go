package manifests

import (
	"strings"
	"testing"

	"edgemesh/manifests"
)

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
