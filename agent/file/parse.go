package file

import (
	"net/netip"

	"edgemesh/agent/mesh"
)

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
