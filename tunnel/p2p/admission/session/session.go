// Package session gives what identifies a connection's TLS session to both of its ends, and to nobody else: a proof that
// contains it counts on this connection only.
package session

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/quic-go/quic-go"
)

// Len is the length of a session's identifier, in bytes.
const Len = 32

// channelBinding is the label of RFC 9266, whose tls-exporter binding is 32 bytes without a context.
const channelBinding = "EXPORTER-Channel-Binding"

// ErrNone means that the connection has nothing to bind a proof to.
var ErrNone = errors.New("this connection has no TLS session")

// Of returns the tls-exporter channel binding of c's session. Over TCP, WebSocket and circuits that is the TLS inside, which
// neither a web server before the far end nor a relay ends. go-libp2p's Noise gives out nothing to bind to: the error then
// is ErrNone.
func Of(c network.Conn) (out [Len]byte, err error) {
	var state tls.ConnectionState
	var overTCP *tls.Conn
	var overUDP *quic.Conn
	switch {
	case c.As(&overTCP):
		state = overTCP.ConnectionState()
	case c.As(&overUDP):
		state = overUDP.ConnectionState().TLS
	default:
		return out, ErrNone
	}
	key, err := state.ExportKeyingMaterial(channelBinding, nil, Len)
	if err != nil {
		return out, fmt.Errorf("export keying material: %w", err)
	}
	return [Len]byte(key), nil
}
