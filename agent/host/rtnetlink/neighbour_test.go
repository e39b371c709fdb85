package rtnetlink

import (
	"errors"
	"io/fs"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"edgemesh/internal/nstest"
)

// TestNeighbour: who answers ARP has a MAC, who was looked for without success has none, and of others nothing is known.
func TestNeighbour(t *testing.T) {
	nstest.Enter(t)
	for _, line := range []string{"ip link add near type veth peer name far", "ip link add lan0 type bridge", "ip link set far master lan0", "ip link set lan0 address 02:00:00:00:00:0b",
		"ip addr add 192.168.1.11/24 dev near", "ip link set near up", "ip link set far up", "ip link set lan0 up",
		"ip neigh add 192.168.1.12 lladdr 02:00:00:00:00:0c dev near nud reachable"} {
		if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	mac, confirmed, err := Neighbour("near", netip.MustParseAddr("192.168.1.12"))
	if want := [6]byte{2, 0, 0, 0, 0, 0xc}; err != nil || mac != want || time.Since(confirmed) > time.Minute {
		t.Errorf("%x, %v, %v", mac, confirmed, err)
	}
	missing := netip.MustParseAddr("192.168.1.13")
	if _, _, err := Neighbour("near", missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not looked for: %v", err)
	}
	_ = exec.Command("ping", "-c", "1", "-W", "1", missing.String()).Run() // nobody is there
	if mac, _, err := Neighbour("near", missing); err != nil || mac != [6]byte{} {
		t.Errorf("looked for without success: %x, %v", mac, err)
	}
	if _, _, err := Neighbour("none", missing); err == nil {
		t.Error("no such link")
	}
}
