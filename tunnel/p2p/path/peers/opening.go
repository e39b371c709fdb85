package peers

import (
	"context"
	"errors"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/path/paths"
)

// ErrUnreachable means that no path to the peer could be made.
var ErrUnreachable = errors.New("peer is unreachable")

// opening is one call of OpenStream. The peer's machine decides on which path the stream is tried; Peer.mu guards what it
// has decided.
type opening struct {
	id     ladder.OpenID
	ready  wake.One           // path or err is set
	path   *paths.Conn        // to be tried now, instead of the one before; nil: none
	err    error              // it cannot be opened
	cancel context.CancelFunc // ends the try under way; nil: there is none
}

// openings are the calls under way, by name.
type openings map[ladder.OpenID]*opening

// try has a stream tried on a path, and not on the one before.
func (os openings) try(id ladder.OpenID, x *paths.Conn) {
	if o := os[id]; o != nil && x != nil {
		o.path = x
		o.end()
	}
}

// fail ends a stream that cannot be opened.
func (os openings) fail(id ladder.OpenID, err error) {
	if o := os[id]; o != nil {
		o.err = err
		o.end()
	}
}

// end ends the try under way.
func (o *opening) end() {
	if o.cancel != nil {
		o.cancel()
	}
	o.ready.Wake()
}
