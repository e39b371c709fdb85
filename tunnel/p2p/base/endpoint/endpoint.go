// Package endpoint has the addresses of nodes: the part of a multiaddr that a NAT
// translates, and what an address says by itself. It is a leaf: it
// knows no membership, no connection and no interface. An IPv6 address that leads to an
// IPv4 host through NAT64 is that host's everywhere here: rules about addresses judge it,
// and nothing else is announced or kept (package nat64).
//
//	endpoint.go   IP address, transport and port: parsed, printed, expanded
package endpoint

import (
	"net/netip"
	"strconv"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/nat64"
)

// Endpoint is the part of a multiaddr that NAT translates.
type Endpoint struct {
	UDP  bool // QUIC, else TCP
	Addr netip.AddrPort
}

func (e Endpoint) Valid() bool { return e.Addr.IsValid() && e.Addr.Port() != 0 }

func (e Endpoint) Multiaddr() ma.Multiaddr {
	fam := "/ip4/"
	if e.Addr.Addr().Is6() {
		fam = "/ip6/"
	}
	s := fam + e.Addr.Addr().WithZone("").String()
	port := strconv.Itoa(int(e.Addr.Port()))
	if e.UDP {
		return ma.StringCast(s + "/udp/" + port + "/quic-v1")
	}
	return ma.StringCast(s + "/tcp/" + port)
}

func (e Endpoint) String() string {
	if e.UDP {
		return "udp " + e.Addr.String()
	}
	return "tcp " + e.Addr.String()
}

// Parse accepts /ip{4,6}/X/tcp/P and /ip{4,6}/X/udp/P/quic-v1, the
// addresses this package dials and listens on. A trailing /p2p/… is ignored; any
// other address (circuits, DNS names, WebTransport) has no endpoint.
func Parse(a ma.Multiaddr) (Endpoint, bool) {
	if n := len(a); n > 0 && a[n-1].Protocol().Code == ma.P_P2P {
		a = a[:n-1]
	}
	if len(a) < 2 {
		return Endpoint{}, false
	}
	addr, ok := IP(a)
	if !ok || (a[0].Protocol().Code != ma.P_IP4 && a[0].Protocol().Code != ma.P_IP6) {
		return Endpoint{}, false
	}
	port, err := strconv.ParseUint(a[1].Value(), 10, 16)
	if err != nil {
		return Endpoint{}, false
	}
	e := Endpoint{Addr: netip.AddrPortFrom(addr, uint16(port))}
	switch {
	case a[1].Protocol().Code == ma.P_TCP && len(a) == 2:
		return e, true
	case a[1].Protocol().Code == ma.P_UDP && len(a) == 3 && a[2].Protocol().Code == ma.P_QUIC_V1:
		e.UDP = true
		return e, true
	}
	return Endpoint{}, false
}

// Target is where packets for a go first, whatever runs above TCP or UDP; circuits have none.
func Target(a ma.Multiaddr) (Endpoint, bool) {
	if a == nil || IsCircuit(a) {
		return Endpoint{}, false
	}
	ip, ok := IP(a)
	if !ok {
		return Endpoint{}, false
	}
	for _, p := range []int{ma.P_TCP, ma.P_UDP} {
		if v, err := a.ValueForProtocol(p); err == nil {
			if port, err := strconv.ParseUint(v, 10, 16); err == nil {
				return Endpoint{UDP: p == ma.P_UDP, Addr: netip.AddrPortFrom(ip, uint16(port))}, true
			}
		}
	}
	return Endpoint{}, false
}

// Offered expands listening addresses to the ones offered to peers: the
// unspecified address stands for every uplink of its family.
func Offered(listen []ma.Multiaddr, uplinks []netip.Addr) []Endpoint {
	var out []Endpoint
	for _, a := range listen {
		e, ok := Parse(a)
		if !ok {
			continue
		}
		if !e.Addr.Addr().IsUnspecified() {
			out = append(out, e)
			continue
		}
		for _, ip := range uplinks {
			if ip.Is4() == e.Addr.Addr().Is4() {
				out = append(out, Endpoint{UDP: e.UDP, Addr: netip.AddrPortFrom(ip, e.Addr.Port())})
			}
		}
	}
	return out
}

// IsCircuit reports whether a leads through a relay.
func IsCircuit(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_CIRCUIT)
	return err == nil
}

// OverUDP reports whether a is a QUIC address; circuits have no answer.
func OverUDP(a ma.Multiaddr) bool {
	e, _ := Parse(a)
	return e.UDP
}

// OverWebSocket reports whether a, a relay's address or one through it, is WebSocket's.
func OverWebSocket(a ma.Multiaddr) bool {
	_, ws := a.ValueForProtocol(ma.P_WS)
	_, wss := a.ValueForProtocol(ma.P_WSS)
	return ws == nil || wss == nil
}

// RelayOf returns the relay's ID in a circuit address, "" if there is none.
func RelayOf(a ma.Multiaddr) peer.ID {
	v, err := a.ValueForProtocol(ma.P_P2P) // the first one: the relay comes before the circuit
	if err != nil {
		return ""
	}
	id, err := peer.Decode(v)
	if err != nil {
		return ""
	}
	return id
}

// Circuit is the address of circuits through a relay at a.
func Circuit(relay peer.ID, a ma.Multiaddr) ma.Multiaddr {
	return a.Encapsulate(ma.StringCast("/p2p/" + relay.String() + "/p2p-circuit"))
}

// IsPublic reports whether ip belongs to the internet, or to a range that the operator
// treats the same way (TreatAsPublic).
func IsPublic(ip netip.Addr) bool {
	return manet.IsPublicAddr(Endpoint{Addr: netip.AddrPortFrom(nat64.Inside(ip), 1)}.Multiaddr())
}

// IsMetadata reports whether ip is one at which clouds answer their machines' questions about themselves: no node of a
// cluster has it.
func IsMetadata(ip netip.Addr) bool {
	switch nat64.Inside(ip).String() {
	case "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42":
		return true
	}
	return false
}

// TransportName is "quic" or "tcp".
func TransportName(udp bool) string {
	if udp {
		return "quic"
	}
	return "tcp"
}

// Real is a with the address of IP in front: what is shown of a connection, and sent to its other end.
func Real(a ma.Multiaddr) ma.Multiaddr {
	if ip, ok := IP(a); ok && NAT64(a) {
		_, rest := ma.SplitFirst(a)
		return Endpoint{Addr: netip.AddrPortFrom(ip, 1)}.Multiaddr()[:1].Encapsulate(rest)
	}
	return a
}

// NAT64 reports whether a leads to an IPv4 host through NAT64.
func NAT64(a ma.Multiaddr) bool {
	ip, ok := IP(a)
	return ok && ip.Is4() && a[0].Code() == ma.P_IP6 && !netip.AddrFrom16([16]byte(a[0].RawValue())).Is4In6()
}

// IP returns the first IP address in a.
func IP(a ma.Multiaddr) (netip.Addr, bool) {
	if a == nil {
		return netip.Addr{}, false
	}
	ip, err := manet.ToIP(a)
	if err != nil {
		return netip.Addr{}, false
	}
	addr, ok := netip.AddrFromSlice(ip)
	return nat64.Inside(addr), ok
}
