package netcheck

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	ma "github.com/multiformats/go-multiaddr"
)

// kind is a transport.
type kind string

const (
	tcp       kind = "tcp"
	udp       kind = "udp"
	webSocket kind = "websocket"
)

// target is where one multiaddr leads.
type target struct {
	kind kind
	host string // an IP address or a name
	port string
	tls  bool // of a WebSocket
	path string
	v6   bool // only its IPv6 addresses count
	v4   bool
	text string // the multiaddr
	may  bool   // not in the membership: a relay may serve it or not
}

func (t target) address() string { return net.JoinHostPort(t.host, t.port) }

// network is t's for package net.
func (t target) network() string {
	out := "tcp"
	if t.kind == udp {
		out = "udp"
	}
	switch {
	case t.v4:
		return out + "4"
	case t.v6:
		return out + "6"
	}
	return out
}

// parse reads a relay's multiaddr. The error says what it is not.
func parse(text string) (target, error) {
	a, err := ma.NewMultiaddr(text)
	if err != nil {
		return target{}, fmt.Errorf("%s: not a multiaddr: %w", text, err)
	}
	t := target{text: text}
	ma.ForEach(a, func(c ma.Component) bool {
		switch code := c.Protocol().Code; code {
		case ma.P_IP4, ma.P_DNS4:
			t.host, t.v4 = c.Value(), true
		case ma.P_IP6, ma.P_DNS6:
			t.host, t.v6 = c.Value(), true
		case ma.P_DNS, ma.P_DNSADDR:
			t.host = c.Value()
		case ma.P_TCP:
			t.kind, t.port = tcp, c.Value()
		case ma.P_UDP:
			t.kind, t.port = udp, c.Value()
		case ma.P_WS:
			t.kind = webSocket
		case ma.P_WSS:
			t.kind, t.tls = webSocket, true
		case ma.P_TLS:
			t.tls = true
		case ma.P_HTTP_PATH:
			t.path = strings.TrimPrefix(c.Value(), "/")
		}
		return true
	})
	if t.host == "" || t.port == "" {
		return target{}, fmt.Errorf("%s: not a TCP or UDP address", text)
	}
	return t, nil
}

// targets are those of one relay, the good ones. A relay may serve WebSocket on its TCP ports, too.
func targets(addrs []string) []target {
	var out []target
	have := map[string]bool{}
	for _, text := range addrs {
		t, err := parse(text)
		if err != nil {
			continue
		}
		out = append(out, t)
		if t.kind == webSocket {
			have[t.address()] = true
		}
	}
	for _, t := range out {
		if t.kind == tcp && !have[t.address()] {
			have[t.address()] = true
			t.kind, t.text, t.may = webSocket, t.text+"/ws", true
			out = append(out, t)
		}
	}
	return out
}

// byVersion are the targets over each IP version: a name may have addresses of both.
func byVersion(all []target) (out []target) {
	for _, t := range all {
		if _, err := netip.ParseAddr(t.host); err == nil || t.v4 || t.v6 {
			out = append(out, t)
			continue
		}
		t4, t6 := t, t
		t4.v4, t6.v6 = true, true
		out = append(out, t4, t6)
	}
	return out
}

// family is t's IP version.
func (t target) family() string {
	if t.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// HostOf is the host of a relay's multiaddr. The error says what is wrong with it.
func HostOf(text string) (string, error) {
	t, err := parse(text)
	return t.host, err
}
