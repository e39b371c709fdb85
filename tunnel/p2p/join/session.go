package join

import (
	"crypto/tls"
	"fmt"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/quic-go/quic-go"
)

// channelBinding is the label of RFC 9266, whose tls-exporter binding is 32 bytes without a context.
const channelBinding = "EXPORTER-Channel-Binding"

// sessionOf returns what identifies c's TLS session to both of its ends, and to nobody else. Over TCP and WebSocket that is
// the TLS inside, which no web server before the relay ends. go-libp2p's Noise gives out nothing to bind to: the error
// then is errNoSession.
func sessionOf(c network.Conn) (out [sessionLen]byte, err error) {
	var state tls.ConnectionState
	var overTCP *tls.Conn
	var overUDP *quic.Conn
	switch {
	case c.As(&overTCP):
		state = overTCP.ConnectionState()
	case c.As(&overUDP):
		state = overUDP.ConnectionState().TLS
	default:
		return out, errNoSession
	}
	key, err := state.ExportKeyingMaterial(channelBinding, nil, sessionLen)
	if err != nil {
		return out, fmt.Errorf("join: export keying material: %w", err)
	}
	return [sessionLen]byte(key), nil
}
