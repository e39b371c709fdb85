package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/passon"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
)

// pathStream is a member's.
type pathStream struct{ *paths.Stream }

// Reset implements passon.Stream.
func (s pathStream) Reset() error { s.Stream.Reset(); return nil }

// exchanger exchanges statements with relays and, where this node pins keys, with members.
func (d *daemon) exchanger() *passon.Exchanger {
	return passon.New(passon.Config{
		Book: d.book, Log: d.log.With("part", "signed"),
		Connected: func() []peer.ID {
			if d.pins() {
				return append(d.node.Connected(), d.node.AtRelays()...)
			}
			return d.node.AtRelays()
		},
		Open: func(ctx context.Context, p peer.ID) (passon.Stream, error) {
			if d.node.IsRelay(p) {
				return d.node.OpenAtRelay(ctx, p, identity.SignedProtocol)
			}
			s, err := d.node.OpenStream(ctx, p, identity.SignedProtocol)
			return pathStream{s}, err
		},
	})
}

// pins reports whether this node believes pinned keys alone.
func (d *daemon) pins() bool { return len(d.cfg.Signers) > 0 }

// passOn shows relays what was signed about this node, and has x exchange statements, until ctx ends.
func (d *daemon) passOn(ctx context.Context, x *passon.Exchanger, wg *sync.WaitGroup) {
	if d.pins() { // others have the API's
		d.node.SetRelayHandler(identity.SignedProtocol, func(p peer.ID, c *paths.Conn, s network.Stream) {
			if c == nil {
				x.Answer(p, s)
				return
			}
			x.Answer(p, pathStream{c.Wrap(s)})
		})
	}
	show := func() {
		if book := d.book(); book != nil {
			d.node.Show(book.Own(d.cfg.NodeName, d.id))
		}
	}
	wg.Go(func() { x.Run(ctx) })
	wg.Go(func() { // the book is busy while it checks signatures
		for show(); wake.Sleep(ctx, time.Second); {
			show()
		}
	})
}
