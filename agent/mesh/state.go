// Package mesh decides, purely: from the membership and the verified paths it
// derives what every other part should hold. It does no I/O, has no clock and
// knows neither libp2p nor netlink.
package mesh

import "net/netip"

// PeerID is a libp2p peer ID in its text form (12D3KooW…). Membership sources
// check the encoding; mesh only compares.
type PeerID string

// Encryption says whether unencrypted LAN paths may be used.
type Encryption string

const (
	// EncryptionAuto allows native and vxlan paths on a verified private LAN.
	EncryptionAuto Encryption = "auto"
	// EncryptionAlways keeps every packet inside the tunnel.
	EncryptionAlways Encryption = "always"
)

// State is the membership of one cluster as a source (file or API) reports it.
// It is a value: sources hand out a new one for every change.
type State struct {
	PodCIDRs   []netip.Prefix // the cluster's pod ranges, IPv4 and/or IPv6
	Relays     []Relay        // public relays, in order of preference
	WANCIDRs   []netip.Prefix // private ranges to treat as public
	Encryption Encryption
	Nodes      []Node
}

// Node is a member: name, identity and the pod blocks it owns.
type Node struct {
	Name     string
	PeerID   PeerID
	PodCIDRs []netip.Prefix
}

// Relay is one public relay and all addresses it is reachable at.
type Relay struct {
	PeerID PeerID
	Addrs  []string // multiaddrs without the trailing /p2p/…
}
