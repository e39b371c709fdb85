package sense

import (
	"context"
	"net"
	"net/netip"
	"time"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/ladder"
)

const (
	// WatchEvery is the interval between queries of a node behind a NAT while a peer is in use. An idle one learns of another
	// address from its connections to relays.
	WatchEvery = 12 * time.Second
	// unansweredLimit is how many unanswered queries in a row are reported.
	unansweredLimit = 2
)

// watcher queries one server, from one socket: a NAT with several addresses may give every socket another one.
type watcher struct {
	s          *Sense
	conn       net.PacketConn // nil: none
	server     netip.AddrPort // who is queried from it
	seen       netip.Addr     // as last answered on it; invalid: no answer yet
	unanswered int            // queries in a row
}

// Watch notices that the site's public address has changed while peers are in use: the connections to relays would show it
// later. It returns when ctx ends.
func (s *Sense) Watch(ctx context.Context) {
	w := watcher{s: s}
	defer w.close()
	for wake.Sleep(ctx, WatchEvery) {
		view, servers := s.View(), s.cfg.Servers()
		if view.Kind == ladder.NATNone || !view.Server.IsValid() || len(servers) == 0 || !s.cfg.InUse() {
			w.close() // the kernel reports changes, no server would answer, or nobody needs to know
			continue
		}
		w.query(ctx, servers[0])
	}
}

func (w *watcher) close() {
	if w.conn != nil {
		_ = w.conn.Close()
	}
	*w = watcher{s: w.s, unanswered: w.unanswered}
}

// query sends one query.
func (w *watcher) query(ctx context.Context, server netip.AddrPort) {
	if w.conn == nil || w.server != server {
		w.close()
		c, err := w.s.socket(server)
		if err != nil {
			return
		}
		w.conn, w.server = c, server
	}
	a, err := w.s.query(ctx, w.conn, server)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if w.unanswered++; w.unanswered == unansweredLimit {
			w.s.cfg.Unanswered()
		}
		if w.unanswered >= unansweredLimit {
			w.close() // its mapping may be one that leads nowhere
		}
		return
	}
	was := w.seen
	w.seen, w.unanswered = a.Mapped.Addr(), 0
	if was.IsValid() && was != w.seen {
		w.s.cfg.Log.Info("the site's public address changed", "was", was, "now", w.seen)
		w.s.Again()
		w.s.cfg.Moved()
	}
}
