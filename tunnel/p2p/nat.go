package p2p

import (
	"net"
	"net/netip"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/nat"
)

// newNAT makes what finds out about this node's NAT.
func (n *Node) newNAT(ports bool) *nat.Sense {
	return nat.New(nat.Config{
		Servers:    n.stunServers,
		Listen:     func(network string) (net.PacketConn, error) { return n.datagrams.Open(network, &net.UDPAddr{}) },
		Owns:       func(ip netip.Addr) bool { return n.addrs.Owns(ip) }, // made later,
		Ports:      ports,
		Changed:    n.peers.natChanged,
		Moved:      func() { n.relays.SuspectAll(); n.peers.netChanged() },
		Unanswered: n.relays.SuspectAll,
		Log:        n.log,
	})
}

// stunServers returns where connected relays answer: IPv4 where there is any, since that is what is translated.
func (n *Node) stunServers() []netip.AddrPort {
	var v4, v6 []netip.AddrPort
	for _, addrs := range n.relays.Addrs() {
		for _, a := range addrs {
			e, ok := endpoint.Parse(a)
			if !ok || !e.UDP || n.gater.View().InCluster(e.Addr.Addr()) {
				continue
			}
			if e.Addr.Addr().Is4() {
				v4 = append(v4, e.Addr)
			} else {
				v6 = append(v6, e.Addr)
			}
			break // one of each relay
		}
	}
	if len(v4) == 0 {
		return v6
	}
	return v4
}

// natChanged tells every peer's machine.
func (ps *peerSet) natChanged() {
	mine := ps.n.puncher.NAT()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, r := range ps.m {
		r.tell(ladder.NATs{Mine: mine, Theirs: r.punch.NAT()})
	}
}
