package plainhost

import (
	"bytes"
	"context"
	"fmt"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	manet "github.com/multiformats/go-multiaddr/net"
	mss "github.com/multiformats/go-multistream"
)

// prompt is an upgrader that saves a dial one round trip: since TLS is all that is offered, the ClientHello follows the offer,
// and the answer to the offer is judged when it comes, before the ServerHello.
type prompt struct{ transport.Upgrader }

// Upgrade implements transport.Upgrader.
func (u prompt) Upgrade(ctx context.Context, t transport.Transport, c manet.Conn, dir network.Direction, p peer.ID,
	scope network.ConnManagementScope) (transport.CapableConn, error) {
	if dir == network.DirOutbound {
		c = &presumed{Conn: c, answer: answer(), want: offer()}
	}
	return u.Upgrader.Upgrade(ctx, t, c, dir, p, scope) //nolint:wrapcheck // its own
}

func offer() []string { return []string{mss.ProtocolID, libp2ptls.ID} }

// answer is multistream-select's to an offer of TLS that is accepted.
func answer() *bytes.Reader {
	var b []byte
	for _, s := range offer() {
		b = append(b, byte(len(s)+1)) // a varint of one byte
		b = append(append(b, s...), '\n')
	}
	return bytes.NewReader(b)
}

// presumed is a connection whose other end is presumed to accept TLS.
type presumed struct {
	manet.Conn
	answer *bytes.Reader // what is still to be read in place of the real answer
	want   []string      // what is still to be read of that
}

var _ network.ConnStat = (*presumed)(nil)

// Read implements net.Conn.
func (c *presumed) Read(b []byte) (int, error) {
	if c.answer.Len() > 0 {
		return c.answer.Read(b) //nolint:wrapcheck // cannot fail
	}
	for len(c.want) > 0 {
		switch s, err := mss.ReadNextToken[string](c.Conn); {
		case err != nil:
			return 0, err //nolint:wrapcheck // the connection's
		case s != c.want[0]:
			return 0, fmt.Errorf("negotiate %s: answer %q, want %q", libp2ptls.ID, s, c.want[0])
		}
		c.want = c.want[1:]
	}
	return c.Conn.Read(b) //nolint:wrapcheck // the connection's own
}

// Stat implements network.ConnStat.
func (c *presumed) Stat() network.ConnStats {
	if s, ok := c.Conn.(network.ConnStat); ok {
		return s.Stat()
	}
	return network.ConnStats{}
}
