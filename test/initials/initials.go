// Package initials makes the first packets of QUIC connections, for tests that pretend to be many strangers.
package initials

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/quic-go/quic-go"
)

// New returns the first packets of n QUIC connections, as libp2p would begin them.
func New(ctx context.Context, n int) ([][]byte, error) {
	loopback := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
	sink, err := net.ListenUDP("udp4", loopback)
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	socket, err := net.ListenUDP("udp4", loopback)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	tr := &quic.Transport{Conn: socket}
	defer tr.Close()
	conf := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"libp2p"}} //nolint:gosec // nobody answers
	out := make([][]byte, n)
	b := make([]byte, 2048)
	for i := range out {
		dial, cancel := context.WithCancel(ctx)
		go func() { _, _ = tr.Dial(dial, sink.LocalAddr(), conf, nil) }()
		_ = sink.SetReadDeadline(time.Now().Add(10 * time.Second))
		k, err := sink.Read(b)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("first packet %d of %d: %w", i+1, n, err)
		}
		out[i] = append([]byte(nil), b[:k]...)
	}
	return out, nil
}
