package rtnetlink

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/mesh"
)

// neighbour is an entry of a neighbour or forwarding table.
type neighbour struct {
	addr netip.Addr // the inner next hop; of a forwarding entry the underlay address
	mac  [6]byte
	fdb  bool
}

// wantNeighbours returns the static neighbours and forwarding entries of all peers.
func wantNeighbours(s plan.State, w mesh.Paths) map[neighbour]bool {
	want := map[neighbour]bool{}
	if !s.LAN.VXLAN {
		return want
	}
	for _, v := range w.VTEPs {
		if v.Underlay.Is6() != s.LAN.IPv6Underlay {
			continue
		}
		want[neighbour{v.Underlay, v.MAC, true}] = true
		for _, g := range v.Gateways {
			if s.Of(g).LAN.On {
				want[neighbour{g, v.MAC, false}] = true
			}
		}
	}
	return want
}

// diffNeighbours compares the entries of the VXLAN device. Deletions come first: a MAC has
// only one forwarding entry.
func diffNeighbours(have, want map[neighbour]bool, index int) []request {
	gone, missing := plan.Diff(have, want)
	var out []request
	for _, n := range gone {
		out = append(out, newRequest("delete "+n.String(), unix.ENOENT, n.request(index, unix.RTM_DELNEIGH, 0)))
	}
	for _, n := range missing {
		out = append(out, newRequest("add "+n.String(), nil, n.request(index, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)))
	}
	return out
}

func (n neighbour) String() string {
	if n.fdb {
		return fmt.Sprintf("forwarding entry %s dst %s", net.HardwareAddr(n.mac[:]), n.addr)
	}
	return fmt.Sprintf("neighbour %s lladdr %s", n.addr, net.HardwareAddr(n.mac[:]))
}

// request returns the message that sets or deletes the entry (rtnetlink(7)).
func (n neighbour) request(index, kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	msg := &netlink.Ndmsg{Index: uint32(index), State: netlink.NUD_PERMANENT}
	switch {
	case n.fdb:
		msg.Family, msg.Flags = unix.AF_BRIDGE, netlink.NTF_SELF
	case n.addr.Is6():
		msg.Family = unix.AF_INET6
	default:
		msg.Family = unix.AF_INET
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.NDA_DST, n.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, n.mac[:]))
	return req
}

// listNeighbours lists all static entries of the VXLAN device.
func listNeighbours(index int) (map[neighbour]bool, error) {
	out := map[neighbour]bool{}
	for _, familyID := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		all, err := dump("neighbours of "+plan.VXLANName, func() ([]netlink.Neigh, error) { return netlink.NeighList(index, familyID) })
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			a, ok := netip.AddrFromSlice(e.IP)
			if !ok || len(e.HardwareAddr) != 6 || e.State&netlink.NUD_PERMANENT == 0 {
				continue
			}
			out[neighbour{a.Unmap(), [6]byte(e.HardwareAddr), familyID == unix.AF_BRIDGE}] = true
		}
	}
	return out, nil
}
