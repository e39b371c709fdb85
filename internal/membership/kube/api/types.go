// Package api holds the objects of network.edgemesh.io/v1alpha1 and the few
// fields of core objects that the membership is made of. The types are plain and
// trimmed: what the JSON holds beyond them (labels, managed fields, the images of
// a Node) is skipped while it is read and never takes memory. The schemas the API
// server validates with are in manifests/edgemesh/crds.
package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

const (
	// Group and Version of the objects of our own.
	Group   = "network.edgemesh.io"
	Version = "v1alpha1"

	// NetworkName is the name of the one PodNetwork of a cluster.
	NetworkName = "cluster"

	// RotateAnnotation on a MeshNode allows one change of its spec.peerID: its
	// value is the peer ID that may be replaced, so the permission ends by itself.
	// Only an administrator can write it (see the admission policy).
	RotateAnnotation = Group + "/rotate-from"
	// ForgetAnnotation on the PodNetwork lists nodes, separated by commas, or is
	// "*": members the API does not list and whose removal cannot be proved, for
	// example after a restored backup, are forgotten.
	ForgetAnnotation = Group + "/forget"
	// MembersAnnotation on the controllers' Lease is the digest of the membership as the leader has it.
	MembersAnnotation = Group + "/members"
	// ProofAnnotation is only ever written in dry runs, see the package kube.
	ProofAnnotation = Group + "/proof"

	// MaxRelayAddresses bounds the addresses of a node as a relay; the MeshNode's schema
	// takes no more.
	MaxRelayAddresses = 8

	// DefaultBlockSize and DefaultBlockSizeIPv6 are the prefix lengths of claimed
	// blocks where the PodNetwork names none; the CRD's defaults are the same.
	DefaultBlockSize     = 24
	DefaultBlockSizeIPv6 = 64
)

// Meta is the part of an object's metadata that is used.
type Meta struct {
	Namespace         string            `json:"namespace,omitempty"`
	Name              string            `json:"name,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	CreationTimestamp *time.Time        `json:"creationTimestamp,omitempty"` // set by the server
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"` // only those of Nodes, and of them what a node cannot write
	OwnerReferences   []OwnerReference  `json:"ownerReferences,omitempty"`
}

// Older orders objects by their creation, and by name where that is the same: of two that claim one thing, the first keeps it.
func (m *Meta) Older(than *Meta) int {
	return cmp.Or(m.created().Compare(than.created()), cmp.Compare(m.Name, than.Name))
}

func (m *Meta) created() time.Time {
	if m.CreationTimestamp == nil {
		return time.Time{}
	}
	return *m.CreationTimestamp
}

// OwnerReference names the object that this one goes away with.
type OwnerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller,omitempty"`
}

// Type is what every object sent to the API begins with.
type Type struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
}

// Object is any of the kinds below.
type Object interface{ Metadata() *Meta }

// Node is a core/v1 Node.
type Node struct {
	Meta   Meta       `json:"metadata"`
	Spec   NodeSpec   `json:"spec"`
	Status NodeStatus `json:"status"`
	Signed string     `json:"-"` // what a controller has signed about it, in that NodeRecord
	Record string     `json:"-"` // the UID of the NodeRecord that this was read from, "" of a Node itself
}

// NodeSpec has the blocks the cluster gave the node, empty without an allocator.
type NodeSpec struct {
	PodCIDRs []string `json:"podCIDRs,omitempty"`
}

// NodeStatus is only used of this node's own Node.
type NodeStatus struct {
	Addresses  []NodeAddress `json:"addresses,omitempty"`
	Conditions []Condition   `json:"conditions,omitempty"`
}

// NodeAddress is an address that kubelet reports.
type NodeAddress struct {
	Type    string `json:"type"` // InternalIP and others
	Address string `json:"address"`
}

// InternalIP is the type of what kubelet's --node-ip sets.
const InternalIP = "InternalIP"

// InternalIPs are the addresses of that type.
func (n *Node) InternalIPs() (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == InternalIP {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// PodNetwork says what the pod network of the cluster is. There is one, named
// NetworkName.
type PodNetwork struct {
	Type
	Meta   Meta             `json:"metadata"`
	Spec   PodNetworkSpec   `json:"spec"`
	Status PodNetworkStatus `json:"status,omitzero"`
}

// Controllers are the peer IDs of those whom nodes may reach before they are members.
func (n *PodNetwork) Controllers() []string {
	if len(n.Spec.Controllers) > 0 {
		return n.Spec.Controllers
	}
	return n.Status.Controllers
}

// PodNetworkStatus is written by the controllers.
type PodNetworkStatus struct {
	Controllers []string `json:"controllers,omitempty"` // their peer IDs, where the spec names none
	// Reservations are the peer IDs of the relays by which nodes that are not yet members reach the controllers, ordered.
	Reservations []string `json:"reservations,omitempty"`
	// Signer is the key by which the controllers sign, and Signed are the bans and departures that they have signed last.
	Signer string   `json:"signer,omitempty"`
	Signed []string `json:"signed,omitempty"`
	// RecordsLease is the Lease of the controller that keeps NodeRecords, NAMESPACE/NAME: while it is renewed, they are complete.
	RecordsLease string `json:"recordsLease,omitempty"`
	// Failing are revisions of agents that crash after they took over: those that stand by with one of them do not.
	Failing []FailingAgents `json:"failing,omitempty"`
	// Policies are the namespaces that have NetworkPolicies, with the directions in which these isolate: Ingress, Egress, or both with a
	// comma. nil: no controller has compiled them.
	Policies map[string]string `json:"policies,omitempty"`
}

// PodNetworkSpec has the fields of cluster.yaml, without nodes.
type PodNetworkSpec struct {
	PodCIDRs      []string `json:"podCIDRs"`
	BlockSize     int      `json:"blockSize,omitempty"`     // prefix length of claimed IPv4 blocks
	BlockSizeIPv6 int      `json:"blockSizeIPv6,omitempty"` // prefix length of claimed IPv6 blocks
	Relays        []string `json:"relays,omitempty"`
	WANCIDRs      []string `json:"wanCIDRs,omitempty"`
	Encryption    string   `json:"encryption,omitempty"`
	LAN           LANTrust `json:"lan,omitzero"`
	// NetworkPolicy is auto or off: whether agents enforce NetworkPolicies.
	NetworkPolicy string `json:"networkPolicy,omitempty"`
	// EnforcerNamespaces have DaemonSets that may enforce NetworkPolicies in the agents' place; nil: kube-system.
	EnforcerNamespaces []string `json:"enforcerNamespaces,omitempty"`
	// MirrorPods is deny or allow: whether policies may allow static pods.
	MirrorPods   string   `json:"mirrorPods,omitempty"`
	Carrier      Carrier  `json:"carrier,omitzero"`
	HostAccess   string   `json:"hostAccess,omitempty"`
	HostPorts    []string `json:"hostPorts,omitempty"`
	PodDenyCIDRs []string `json:"podDenyCIDRs,omitempty"`
	// Banned are peer IDs and names of nodes that are refused, whatever else the API says.
	Banned []string `json:"banned,omitempty"`
	// Observers are peer IDs and names of nodes that may query the status of all members.
	Observers []string `json:"observers,omitempty"`
	// TrustedNodes says that every node is trusted with others' objects, where the API server cannot prevent that it writes them.
	TrustedNodes bool `json:"trustedNodes,omitempty"`
	// AdmitLabel is the label that a Node must carry to be admitted, KEY or KEY=VALUE; only administrators can give it.
	AdmitLabel string `json:"admitLabel,omitempty"`
	// Controllers are peer IDs of controllers, in place of those that say so in the status.
	Controllers []string `json:"controllers,omitempty"`
	// Signed are signed statements about members, bans and delegations, which count where signers pins a key.
	Signed []string `json:"signed,omitempty"`
	// MemberRelays accepts nodes that say they are relays, in addition to Relays.
	MemberRelays bool `json:"memberRelays,omitempty"`
}

// Carrier says what carries the lanes of the tunnel: Sealed is auto or off.
type Carrier struct {
	Sealed string `json:"sealed,omitempty"`
}

// LANTrust says in which networks VXLAN may cross routers.
type LANTrust struct {
	Trusted []string `json:"trusted,omitempty"`
}

// MeshNode binds a node's name to its peer ID. Its owner is the Node.
type MeshNode struct {
	Type
	Meta   Meta           `json:"metadata"`
	Spec   MeshNodeSpec   `json:"spec"`
	Status MeshNodeStatus `json:"status,omitzero"`
}

// ModeAnnotation on a MeshNode says that another network plugin has the pods of this
// node: its value is ModeKeep. The blocks that the plugin has for the node in the
// API, if any, are then the node's. The node writes it itself; it chooses the
// source of blocks, and no block.
const (
	ModeAnnotation = Group + "/cni-mode"
	ModeKeep       = "keep"
)

// Kept reports whether another plugin has the pods of m's node.
func (m *MeshNode) Kept() bool { return m.Meta.Annotations[ModeAnnotation] == ModeKeep }

// MeshNodeSpec is what members rely on.
type MeshNodeSpec struct {
	PeerID string `json:"peerID"`
}

// MeshNodeStatus is for people, except for RelayAddresses.
type MeshNodeStatus struct {
	// RelayAddresses are where others reach this node as their relay, multiaddrs
	// without /p2p/…; they count only where the PodNetwork says memberRelays.
	RelayAddresses []string `json:"relayAddresses,omitempty"`

	Addresses    []string    `json:"addresses,omitempty"` // of the node in the mesh, at most one per IP family
	PodCIDRs     []string    `json:"podCIDRs,omitempty"`  // as resolved from the Node or its PodBlocks
	AgentVersion string      `json:"agentVersion,omitempty"`
	Conditions   []Condition `json:"conditions,omitempty"`
}

// NATType is the condition of a MeshNode that names the NAT before the node; its reason is the kind.
const NATType = "NAT"

// Place is where a node is.
type Place struct {
	Addresses []string // of the node in the mesh; nil: not said yet
	NAT       string   // none, stable, sequential or random; anything else: not known
}

// After is p where old was said before: a NAT that is not known now stays the last one known.
func (p Place) After(old Place) Place {
	if p.Condition(nil) == nil {
		p.NAT = old.NAT
	}
	return p
}

// Condition is what a MeshNode says of the NAT, before what the node knows itself that of old.
func (p Place) Condition(old []Condition) []Condition {
	c := Condition{Type: NATType, Status: "True"}
	switch p.NAT {
	case "none":
		c.Status, c.Reason, c.Message = "False", "None", "no NAT is before the node"
	case "stable":
		c.Reason, c.Message = "Stable", "the NAT gives a socket one port for all destinations: holes can be punched"
	case "sequential":
		c.Reason, c.Message = "Sequential", "the NAT gives each destination the next port: holes can mostly be punched"
	case "random":
		c.Reason, c.Message = "Random", "the NAT gives each destination any port: holes can be punched to nodes whose NAT does not"
	default:
		if c := FindCondition(old, NATType); c != nil {
			return []Condition{*c}
		}
		return nil
	}
	return []Condition{c}
}

// PodBlock is the claim of one block. It is named by BlockName and never changes,
// so that the API server lets exactly one node have it.
type PodBlock struct {
	Type
	Meta Meta         `json:"metadata"`
	Spec PodBlockSpec `json:"spec"`
}

// Prefix is b's block. Its name is what makes it unique, so that both must be canonical; API servers before Kubernetes 1.31 do not
// check that.
func (b *PodBlock) Prefix() (netip.Prefix, error) {
	p, err := netip.ParsePrefix(b.Spec.CIDR)
	switch {
	case err != nil || p.Masked().String() != b.Spec.CIDR:
		return p, fmt.Errorf("%q is not an aligned CIDR in canonical form, like 10.244.1.0/24", b.Spec.CIDR)
	case b.Meta.Name != BlockName(p):
		return p, fmt.Errorf("cidr %q does not match the name", b.Spec.CIDR)
	}
	return p, nil
}

// PodBlockSpec says whose block it is.
type PodBlockSpec struct {
	CIDR     string `json:"cidr"`
	NodeName string `json:"nodeName"`
}

// Condition is metav1.Condition, and with LastHeartbeatTime a Node's condition.
type Condition struct {
	Type               string     `json:"type"`
	Status             string     `json:"status"` // True, False or Unknown
	Reason             string     `json:"reason"`
	Message            string     `json:"message"`
	LastTransitionTime *time.Time `json:"lastTransitionTime,omitempty"`
	LastHeartbeatTime  *time.Time `json:"lastHeartbeatTime,omitempty"`
}

// BlockBits is how long the prefix of a claimed block is, of p's IP version.
func (n *PodNetwork) BlockBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return cmp.Or(n.Spec.BlockSize, DefaultBlockSize)
	}
	return cmp.Or(n.Spec.BlockSizeIPv6, DefaultBlockSizeIPv6)
}

// Metadata implements Object.
func (n *Node) Metadata() *Meta { return &n.Meta }

// Metadata implements Object.
func (n *PodNetwork) Metadata() *Meta { return &n.Meta }

// Metadata implements Object.
func (n *MeshNode) Metadata() *Meta { return &n.Meta }

// Metadata implements Object.
func (b *PodBlock) Metadata() *Meta { return &b.Meta }

var (
	_ Object = (*Node)(nil)
	_ Object = (*PodNetwork)(nil)
	_ Object = (*MeshNode)(nil)
	_ Object = (*NodeRecord)(nil)
	_ Object = (*PodBlock)(nil)
	_ Object = (*PolicyGroup)(nil)
)

// FindCondition returns the condition of that type, nil if there is none.
func FindCondition(list []Condition, conditionType string) *Condition {
	for i := range list {
		if list[i].Type == conditionType {
			return &list[i]
		}
	}
	return nil
}
