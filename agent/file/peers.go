package file

import (
	"fmt"
	"net/netip"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/agent/mesh"
)

// peerID checks text's encoding and that it holds an Ed25519 public key, the only kind
// that our programs create. Validate reports an empty one.
func peerID(bad *mesh.Invalid, field, text string) mesh.PeerID {
	if text == "" {
		return ""
	}
	id, err := peer.Decode(text)
	if err != nil {
		bad.Addf(field, "%q is not a peer ID (12D3KooW…): %v", text, err)
		return ""
	}
	if _, err := id.ExtractPublicKey(); err != nil {
		bad.Addf(field, "%q is not the peer ID of an Ed25519 key (12D3KooW…)", text)
		return ""
	}
	return mesh.PeerID(id.String())
}

// relays groups the addresses by peer ID, in the order they are first listed.
func relays(bad *mesh.Invalid, list []string, podCIDRs []netip.Prefix) []mesh.Relay {
	var out []mesh.Relay
	index := make(map[mesh.PeerID]int)
	seen := make(map[string]int)
	for i, text := range list {
		field := fmt.Sprintf("relays[%d]", i)
		id, addr, ok := relayAddr(bad, field, text, podCIDRs)
		if !ok {
			continue
		}
		if j, dup := seen[addr+"/"+string(id)]; dup {
			bad.Addf(field, "the same address as relays[%d]; remove one", j)
			continue
		}
		seen[addr+"/"+string(id)] = i
		r, known := index[id]
		if !known {
			r = len(out)
			index[id] = r
			out = append(out, mesh.Relay{PeerID: id})
		}
		out[r].Addrs = append(out[r].Addrs, addr)
	}
	return out
}

// relayAddr splits a relay's address into its peer ID and the address to dial.
func relayAddr(bad *mesh.Invalid, field, text string, podCIDRs []netip.Prefix) (mesh.PeerID, string, bool) {
	m, err := ma.NewMultiaddr(text)
	if err != nil {
		bad.Addf(field, "%q is not a multiaddr like /ip4/5.5.5.5/tcp/4470/p2p/12D3KooW…: %v", text, err)
		return "", "", false
	}
	if _, err := m.ValueForProtocol(ma.P_CIRCUIT); err == nil {
		bad.Addf(field, "%s is itself an address behind a relay; a relay must be reachable directly", text)
		return "", "", false
	}
	transport, id := peer.SplitAddr(m)
	if id == "" {
		bad.Addf(field, "%s has no peer ID; append /p2p/ and what `edgemesh-relay id` prints", text)
		return "", "", false
	}
	pid := peerID(bad, field, id.String())
	if pid == "" {
		return "", "", false
	}
	if transport == nil || !dialable(transport) {
		bad.Addf(field, "%s does not have the form …/tcp/PORT/p2p/ID, …/udp/PORT/quic-v1/p2p/ID or, for WebSocket, …/tcp/PORT/ws/p2p/ID or …/tcp/PORT/tls/ws/p2p/ID", text)
		return "", "", false
	}
	if ip, err := manet.ToIP(transport); err == nil {
		a, _ := netip.AddrFromSlice(ip)
		a = a.Unmap()
		if a.IsUnspecified() || a.IsMulticast() {
			bad.Addf(field, "%s cannot be dialed", a)
			return "", "", false
		}
		for i, p := range podCIDRs {
			if p.Contains(a) {
				bad.Addf(field, "%s is inside podCIDRs[%d] (%s): the tunnel would run inside itself", a, i, p)
				return "", "", false
			}
		}
	}
	return pid, transport.String(), true
}

// dialable reports whether m is host/tcp/port, alone or with /ws, /tls/ws or /wss, or
// host/udp/port/quic-v1, with a port other than 0.
func dialable(m ma.Multiaddr) bool {
	protos := m.Protocols()
	if len(protos) < 2 {
		return false
	}
	switch protos[0].Code {
	case ma.P_IP4, ma.P_IP6, ma.P_DNS, ma.P_DNS4, ma.P_DNS6:
	default:
		return false
	}
	port, err := m.ValueForProtocol(protos[1].Code)
	if err != nil || port == "0" {
		return false
	}
	switch protos[1].Code {
	case ma.P_TCP:
		if len(protos) == 2 {
			return true
		}
		rest := m[2:].String()
		return rest == "/ws" || rest == "/tls/ws" || rest == "/wss"
	case ma.P_UDP:
		return len(protos) == 3 && protos[2].Code == ma.P_QUIC_V1
	}
	return false
}

// ParsePeerID checks a node's peer ID by the rules of cluster.yaml, for other sources of
// membership. The error is a *mesh.Invalid.
func ParsePeerID(field, text string) (mesh.PeerID, error) {
	var bad mesh.Invalid
	if text == "" {
		bad.Addf(field, "empty")
	}
	id := peerID(&bad, field, text)
	return id, bad.Err()
}

// ParseRelays groups and checks relay addresses by the rules of cluster.yaml, for other
// sources of membership. It returns the valid ones even if others are not; the error is a
// *mesh.Invalid.
func ParseRelays(list []string, podCIDRs []netip.Prefix) ([]mesh.Relay, error) {
	var bad mesh.Invalid
	out := relays(&bad, list, podCIDRs)
	return out, bad.Err()
}

// ParseBanned checks a list of peer IDs and node names by the rules of cluster.yaml, for other sources of membership. It
// returns the valid ones even if others are not; the error is a *mesh.Invalid.
func ParseBanned(list []string) ([]string, error) {
	var bad mesh.Invalid
	out := banned(&bad, list)
	return out, bad.Err()
}

// banned accepts peer IDs, which it returns in their usual form, and names of nodes. Who is meant need not exist.
func banned(bad *mesh.Invalid, list []string) []string {
	var out []string
	for i, text := range list {
		field := fmt.Sprintf("banned[%d]", i)
		if mesh.CheckNodeName(text) == nil {
			out = append(out, text)
			continue
		}
		id, err := peer.Decode(text)
		if err != nil {
			bad.Addf(field, "%q is neither a peer ID (12D3KooW…) nor the name of a node (lower-case letters, digits, '-' and '.')", text)
			continue
		}
		out = append(out, id.String())
	}
	return out
}
