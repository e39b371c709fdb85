package stun

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// Service answers on the UDP ports that QUIC listens on, and on one port above each of them: a client that queries both
// learns whether its NAT gives every destination a port of its own. Where the second one is taken, or a firewall closes
// it, clients need two servers to learn that.
type Service struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Start serves beside the QUIC listeners of cm at the given addresses. Addresses of other transports are left out.
func Start(cm *quicreuse.ConnManager, listen []ma.Multiaddr, log *slog.Logger) (*Service, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Service{cancel: cancel}
	for _, a := range listen {
		if _, err := a.ValueForProtocol(ma.P_QUIC_V1); err != nil {
			continue
		}
		netAddr, err := manet.ToNetAddr(a.Decapsulate(ma.StringCast("/quic-v1")))
		if err != nil {
			continue
		}
		udp, ok := netAddr.(*net.UDPAddr)
		if !ok {
			continue
		}
		shared, err := cm.SharedNonQUICPacketConn("udp", udp)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("serve STUN on %s: %w", a, err)
		}
		// By family: "udp" has 0.0.0.0 stand for all addresses of both.
		family := "udp4"
		if udp.IP.To4() == nil {
			family = "udp6"
		}
		other := netip.AddrPort{}
		second, err := net.ListenUDP(family, &net.UDPAddr{IP: udp.IP, Port: udp.Port + 1})
		if err != nil {
			log.Info("STUN has no second port: clients need two relays to learn what their NATs do", "port", udp.Port+1, "err", err)
		} else {
			// Of IPv4 also where IPv6 is served: an answer with both addresses in IPv6 would be longer than its request.
			other = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(udp.Port+1))
			s.wg.Go(func() { Serve(ctx, second, netip.AddrPort{}) })
		}
		s.wg.Go(func() { Serve(ctx, shared, other) })
	}
	return s, nil
}

// Close stops answering, and waits for the goroutines.
func (s *Service) Close() {
	s.cancel()
	s.wg.Wait()
}
