package host

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/sysctl"
)

func TestConntrackIsNearlyFull(t *testing.T) {
	for _, c := range []struct {
		entries, most uint64
		want          bool
	}{{0, 262144, false}, {240000, 262144, false}, {250000, 262144, true}, {262144, 262144, true}, {7, 0, false}} {
		if f := conntrack(c.entries, c.most); len(f) > 0 != c.want {
			t.Errorf("%d of %d: %+v", c.entries, c.most, f)
		}
	}
	enter(t)
	makeTUN(t)
	mustSet(t, newHost(t), dual())
	if text, err := sysctl.Read("net/netfilter/nf_conntrack_max"); err != nil || text == "0" {
		t.Fatalf("this kernel has other keys: %q, %v", text, err)
	}
	if f := Conntrack(); len(f) > 0 {
		t.Errorf("an empty table: %+v", f)
	}
}

// TestConntrackFull fills a namespace's table with connections that the kernel may not drop early: the finding says so, and new
// connections are dropped, which is the kernel's doing.
func TestConntrackFull(t *testing.T) {
	if os.Getenv("EDGEMESH_E2E") != "full" {
		t.Skip("slow: run with EDGEMESH_E2E=full (make e2e)")
	}
	enter(t)
	makeTUN(t)
	mustSet(t, newHost(t), dual())
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	a, b := net.IP{192, 0, 2, 1}, net.IP{192, 0, 2, 2}
	for i := 0; ; i++ {
		from := uint16(i)
		b[2] = byte(i >> 16)
		f := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600,
			Forward: netlink.IPTuple{SrcIP: a, DstIP: b, SrcPort: from, DstPort: 53, Protocol: unix.IPPROTO_UDP},
			Reverse: netlink.IPTuple{SrcIP: b, DstIP: a, SrcPort: 53, DstPort: from, Protocol: unix.IPPROTO_UDP}}
		if err := h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, f); err != nil {
			t.Logf("after %d entries: %v", i, err)
			break
		}
		if i%1024 == 0 && len(Conntrack()) > 0 {
			break
		}
	}
	if f := Conntrack(); len(f) != 1 || !strings.Contains(f[0].Remedy, "nf_conntrack_max") {
		t.Errorf("findings: %+v", f)
	}
}
