// Package mesh is the pure decider: from the membership and the verified paths it derives
// the wanted state of every other part. It does no I/O, has no clock and knows neither
// libp2p nor netlink.
package mesh

import (
	"net/netip"
	"slices"
)

// PeerID is a libp2p peer ID in its text form (12D3KooW…). Membership sources
// check the encoding; mesh only compares.
type PeerID string

// RawID is a peer ID in its binary form, as connections have it.
type RawID string

// Encryption says whether unencrypted LAN paths may be used.
type Encryption string

const (
	// EncryptionAuto allows native and vxlan paths on a verified private LAN.
	EncryptionAuto Encryption = "auto"
	// EncryptionAlways keeps every packet inside the tunnel.
	EncryptionAlways Encryption = "always"
)

// State is the membership of one cluster as a source (file or API) reports it.
// It is a value: sources return a new one for every change, and its slices must not be
// written. The JSON form is the snapshot's.
type State struct {
	PodCIDRs   []netip.Prefix `json:"podCIDRs"`           // the cluster's pod ranges, IPv4 and/or IPv6
	Relays     []Relay        `json:"relays,omitempty"`   // public relays, in order of preference
	WANCIDRs   []netip.Prefix `json:"wanCIDRs,omitempty"` // private ranges to treat as public
	Encryption Encryption     `json:"encryption"`
	LAN        Trust          `json:"lan,omitzero"`
	Banned     []string       `json:"banned,omitempty"` // peer IDs and names of nodes that are refused whatever else is said
	// Observers are nodes, by name or peer ID, that may query the status of all others; any member may query its own pair.
	Observers []string `json:"observers,omitempty"`
	// Controllers are whom nodes may reach, over relays, before they are members.
	Controllers []PeerID `json:"controllers,omitempty"`
	// Signed are statements that the source has, which package signed reads: not in a snapshot.
	Signed []string `json:"-"`
	// Signer is the key by which the cluster's controllers sign, which is also that of statements on disk.
	Signer string `json:"signer,omitempty"`
	// News are bans and departures that they have signed: not in a snapshot.
	News []string `json:"-"`
	// Source is the whole as the source has it, where statements have changed it: that is in a snapshot, and is judged again. nil: this is it.
	Source *State `json:"-"`
	// AdmitLabel is the label, KEY or KEY=VALUE, that a node must carry to be admitted; "" admits all that are not banned.
	AdmitLabel string `json:"admitLabel,omitempty"`
	Nodes      []Node `json:"nodes,omitempty"`
	Access
	Policies
	Carrier Carrier `json:"carrier,omitzero"`
}

// Carrier says what carries the lanes of the tunnel, from an agent's next start on.
type Carrier struct {
	Sealed Sealed `json:"sealed,omitempty"` // "" is auto
}

// Sealed says whether sealed packets with repair do.
type Sealed string

const (
	// SealedAuto has them carry where both ends have it, and a QUIC connection.
	SealedAuto Sealed = "auto"
	// SealedOff leaves the lanes to TCP.
	SealedOff Sealed = "off"
)

// Check adds what is wrong with it to bad.
func (c Carrier) Check(bad *Invalid) {
	switch c.Sealed {
	case "", SealedAuto, SealedOff:
	default:
		bad.Addf("carrier.sealed", "%q is neither %q nor %q", c.Sealed, SealedAuto, SealedOff)
	}
}

// Policies says who enforces NetworkPolicies, and who compiles them.
type Policies struct {
	NetworkPolicy NetworkPolicy `json:"networkPolicy,omitempty"` // "" is auto
	MirrorPods    MirrorPods    `json:"mirrorPods,omitempty"`    // "" is deny
	// EnforcerNamespaces have DaemonSets that may enforce NetworkPolicies in the agents' place; nil: kube-system.
	EnforcerNamespaces []string `json:"enforcerNamespaces,omitempty"`
	PolicyFile         string   `json:"policies,omitempty"`         // of a membership file: a path
	PolicyController   bool     `json:"policyController,omitempty"` // one is configured: it compiles them, now or as soon as it runs
	// PolicyNamespaces have some, with the directions in which these isolate, as Ingress,Egress; nil: not compiled yet. Of now: not in a
	// snapshot.
	PolicyNamespaces map[string]string `json:"-"`
	PolicyProved     bool              `json:"-"` // what PolicyNamespaces lacks has none: an API server has said so, not a cache
}

// NetworkPolicy says who enforces NetworkPolicies.
type NetworkPolicy string

const (
	// PolicyAuto has agents enforce them.
	PolicyAuto NetworkPolicy = "auto"
	// PolicyOff leaves them to another program.
	PolicyOff NetworkPolicy = "off"
)

// MirrorPods says whether static pods, which kubelets show the API as mirror pods with labels and a namespace of their choice, are peers that a
// NetworkPolicy may allow.
type MirrorPods string

const (
	// MirrorDeny has no policy allow them: whoever has a node's credential chooses them.
	MirrorDeny MirrorPods = "deny"
	// MirrorAllow takes them for pods like others.
	MirrorAllow MirrorPods = "allow"
)

// Said is s as its source has it.
func (s State) Said() State {
	if s.Source != nil {
		return *s.Source
	}
	return s
}

// Node returns the node of that name, admitted or not.
func (s State) Node(name string) (Node, bool) {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return Node{}, false
	}
	return s.Nodes[i], true
}

// Node is a member: name, identity and the pod blocks it owns.
type Node struct {
	Name     string         `json:"name"`
	PeerID   PeerID         `json:"peerID"`
	PodCIDRs []netip.Prefix `json:"podCIDRs"`
	// Site is where it stands, for people only: nothing is decided by it.
	Site string `json:"site,omitempty"`
	// Labels are those that administrators alone can give it (RestrictedPrefix), as far as the membership uses them.
	Labels map[string]string `json:"labels,omitempty"`
	// NodeIPs are the addresses that this node's own kubelet reports; no source says those of other nodes.
	NodeIPs []netip.Addr `json:"nodeIPs,omitempty"`
	// Unreported: it reports none now, and NodeIPs are the last ones.
	Unreported bool `json:"unreported,omitempty"`
}

// Report notes what this node's kubelet reports now. What it reported last stays while it reports nothing.
func (n *Node) Report(now []netip.Addr) {
	if n.Unreported = len(now) == 0; !n.Unreported {
		n.NodeIPs = now
	}
}

// Relay is one public relay and all addresses it is reachable at.
type Relay struct {
	PeerID PeerID   `json:"peerID"`
	Addrs  []string `json:"addrs"` // multiaddrs without the trailing /p2p/…
}

// ByName indexes members.
func ByName(list []Node) map[string]Node {
	out := make(map[string]Node, len(list))
	for _, n := range list {
		out[n.Name] = n
	}
	return out
}
