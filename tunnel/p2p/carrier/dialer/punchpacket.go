package dialer

import (
	"context"
	"net"
	"net/netip"
	"time"

	"edgemesh/tunnel/p2p/base/endpoint"
)

// PunchPacket means nothing: the NAT it leaves by lets answers in from where it goes
// to. Its first two bits are zero, so that QUIC passes over it.
var PunchPacket = []byte{0, 'e', 'd', 'g', 'e'} //nolint:gochecknoglobals // a constant

// OpenNAT sends punch packets to the endpoints from the listening sockets, again and
// again until ctx ends: the far end dials at some moment of that time.
func (d *Dialer) OpenNAT(ctx context.Context, eps []endpoint.Endpoint) {
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		for _, l := range d.ListenAddrs() {
			e, _ := endpoint.Parse(l)
			c := d.shared(e)
			if c == nil {
				continue
			}
			for _, to := range eps {
				at, _ := d.cfg.Names.Via(ctx, to.Addr.Addr())
				if at.Is4() == e.Addr.Addr().Is4() {
					_, _ = c.WriteTo(PunchPacket, net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, to.Addr.Port())))
				}
			}
			_ = c.Close()
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// ListeningUDP4 is a listening socket for IPv4, nil if there is none. Closing it leaves
// the socket to QUIC.
func (d *Dialer) ListeningUDP4() net.PacketConn {
	for _, l := range d.ListenAddrs() {
		if e, _ := endpoint.Parse(l); e.Addr.Addr().Is4() {
			if c := d.shared(e); c != nil {
				return c
			}
		}
	}
	return nil
}

// shared is the QUIC socket that is bound to e, nil if there is none.
func (d *Dialer) shared(e endpoint.Endpoint) net.PacketConn {
	if !e.UDP {
		return nil
	}
	c, err := d.quic.SharedNonQUICPacketConn("udp", net.UDPAddrFromAddrPort(e.Addr))
	if err != nil {
		return nil
	}
	return c
}
