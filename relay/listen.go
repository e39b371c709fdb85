package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/carrier/plainhost"
)

// errListen means that an address cannot be listened on.
var errListen = errors.New("cannot listen")

// bind listens on every address, on UDP by open, WebSocket's first: where TCP shares its port, WebSocket's transport binds it.
func bind(h *plainhost.Host, listen []ma.Multiaddr, open func(network string, a *net.UDPAddr) (net.PacketConn, error)) error {
	order := make([]int, len(listen))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return len(listen[j]) - len(listen[i]) }) // …/ws is longer
	var bound []ma.Multiaddr
	for _, i := range order {
		// libp2p's error does not wrap the kernel's: try the kernel first.
		a := listen[i]
		var err error
		if !sharesWith(a, bound) {
			err = bindable(a)
		}
		if err == nil {
			var at ma.Multiaddr
			if at, err = h.QUIC.Bind(a, open, nil); err == nil {
				err = h.Network().Listen(at)
			}
		}
		if err != nil {
			return fmt.Errorf("listen[%d]: %w on %s: %w", i, errListen, a, err)
		}
		bound = append(bound, a)
	}
	return nil
}

// sharesWith says whether a is on one TCP port with one of others. Port 0 is a
// port of its own.
func sharesWith(a ma.Multiaddr, others []ma.Multiaddr) bool {
	return a[1].Protocol().Code == ma.P_TCP && a[1].Value() != "0" &&
		slices.ContainsFunc(others, func(b ma.Multiaddr) bool { return a[:2].Equal(b[:2]) })
}

// bindable tries to bind a's port and gives it back.
func bindable(a ma.Multiaddr) error {
	network, address, err := manet.DialArgs(a[:2])
	if err != nil {
		return err
	}
	var l io.Closer
	if strings.HasPrefix(network, "udp") {
		l, err = net.ListenPacket(network, address)
	} else {
		l, err = net.Listen(network, address)
	}
	if err != nil {
		return err
	}
	return l.Close()
}
