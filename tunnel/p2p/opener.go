package p2p

import (
	"context"
	"net"
	"time"

	"edgemesh/tunnel/p2p/endpoint"
)

// opener is a packet that means nothing: the NAT it leaves by lets answers in from
// where it goes to. Its first two bits are zero, so that QUIC passes over it.
var opener = []byte{0, 'e', 'd', 'g', 'e'} //nolint:gochecknoglobals // a constant

// open sends openers to the endpoints from the listening socket, again and again
// until ctx ends: the far end dials at some moment of that time.
func (n *Node) open(ctx context.Context, eps []endpoint.Endpoint) {
	pause := 100 * time.Millisecond
	for {
		for _, l := range n.ListenAddrs() {
			e, ok := endpoint.Parse(l)
			if !ok || !e.UDP {
				continue
			}
			c, err := n.quic.SharedNonQUICPacketConn("udp", net.UDPAddrFromAddrPort(e.Addr))
			if err != nil {
				continue
			}
			for _, to := range eps {
				if to.Addr.Addr().Is4() == e.Addr.Addr().Is4() {
					_, _ = c.WriteTo(opener, net.UDPAddrFromAddrPort(to.Addr))
				}
			}
			_ = c.Close()
		}
		if !sleep(ctx, pause) {
			return
		}
		pause *= 2
	}
}
