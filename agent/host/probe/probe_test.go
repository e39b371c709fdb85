package probe

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/internal/nstest"
)

// TestNoPort: where a port cannot be made that leads to an interface, the packets that go in there are left out, and no others.
func TestNoPort(t *testing.T) {
	nstest.Enter(t)
	nstest.Run(t, "ip link add up0 type veth peer name far0")
	const tooLarge = 1 << 20 // fails as late as a kernel does that cannot redirect packets
	if port, err := NewPort(PortName, tooLarge, "up0"); err == nil || port != nil {
		t.Errorf("port %v, error %v", port, err)
	}
	p := Packet{In: "up0", Src: netip.MustParseAddr("10.244.2.5"), Dst: netip.MustParseAddr("10.244.1.5"), Proto: unix.IPPROTO_UDP}
	other, sent := p, 0
	other.In = plan.TUNName
	if err := Send([]Packet{p, other}, nft.Mark{}, tooLarge, func([]byte) error { sent++; return nil }); err != nil || sent != 1 {
		t.Errorf("%d packets sent, error %v", sent, err)
	}
}

// TestPortMAC: a port does not look like the uplink that it leads to, for programs that know interfaces by their MAC.
func TestPortMAC(t *testing.T) {
	nstest.Enter(t)
	nstest.Run(t, "ip link add up0 type veth peer name far0")
	port, err := NewPort(PortName, 1500, "up0")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	var macs [][]byte
	for _, name := range []string{"up0", PortName} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		macs = append(macs, link.Attrs().HardwareAddr)
	}
	if bytes.Equal(macs[0], macs[1]) {
		t.Errorf("both have the MAC %x", macs[0])
	}
}
