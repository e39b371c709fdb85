package p2p

import (
	"context"
	"net"
	"net/netip"
	"time"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/ladder"
)

const (
	// outerLook is how often a node behind a NAT asks a relay where it is seen. The
	// request has 92 bytes with its headers: 460 bytes a minute, of the 2 kB that an
	// idle node may send.
	outerLook = 12 * time.Second
	// outerMisses is after how many questions in a row without an answer the relays
	// are asked over their connections.
	outerMisses = 2
)

// outer asks one relay, from one socket: a NAT with several addresses may give every
// socket another one.
type outer struct {
	s      *natSense
	conn   net.PacketConn // nil: none
	server netip.AddrPort // who is asked on it
	seen   netip.Addr     // invalid: nobody has answered on it
	missed int            // questions in a row
}

// watch notices that the site's address has changed while nothing is sent: the
// connections to relays would show it after half a minute, and who calls meanwhile
// does not get through.
func (s *natSense) watch(ctx context.Context) {
	o := outer{s: s}
	defer o.close()
	for wake.Sleep(ctx, outerLook) {
		view := s.now()
		servers := s.servers()
		if view.kind == ladder.NATNone || !view.ask.IsValid() || len(servers) == 0 {
			o.close() // the kernel tells, or nobody would answer
			continue
		}
		o.look(ctx, servers[0])
	}
}

func (o *outer) close() {
	if o.conn != nil {
		_ = o.conn.Close()
	}
	*o = outer{s: o.s, missed: o.missed}
}

// look asks once.
func (o *outer) look(ctx context.Context, server netip.AddrPort) {
	n := o.s.n
	if o.conn == nil || o.server != server {
		o.close()
		c, err := o.s.socket(ctx, server)
		if err != nil {
			return
		}
		o.conn, o.server = c, server
	}
	a, err := o.s.ask(ctx, o.conn, server)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if o.missed++; o.missed == outerMisses {
			n.relays.suspectAll()
		}
		if o.missed >= outerMisses {
			o.close() // its mapping may be one that leads nowhere
		}
		return
	}
	was := o.seen
	o.seen, o.missed = a.Mapped.Addr(), 0
	if was.IsValid() && was != o.seen {
		n.log.Info("the site's address changed", "was", was, "now", o.seen)
		o.s.again()
		n.relays.suspectAll()
		n.peers.netChanged()
	}
}
