package mesh

import (
	"encoding"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Access says what of a node the pod network reaches, and what pods reach through their node. It is the same on all
// nodes of a cluster. The zero value closes nothing.
type Access struct {
	HostAccess   HostAccess     `json:"hostAccess,omitempty"`   // "" as HostAll
	HostPorts    []HostPort     `json:"hostPorts,omitempty"`    // open whatever HostAccess says
	PodDenyCIDRs []netip.Prefix `json:"podDenyCIDRs,omitempty"` // what pods may not reach through their node
}

// Forward says whom outside of the pod network a node forwards into it, under its own mesh address: API servers whose
// machines run no agent, for instance.
type Forward struct {
	From  []netip.Prefix
	Ports []HostPort // of nodes and pods
	All   bool       // the node routes between its uplinks, too
}

// HostAccess says who reaches the ports of a node by its addresses in the pod network.
type HostAccess string

// The values of HostAccess. In each of them answers to the node's own connections, ICMP and agents' probes pass.
const (
	HostAll   HostAccess = "all"   // every pod and node
	HostNodes HostAccess = "nodes" // other nodes only
	HostNone  HostAccess = "none"  // nobody
)

// Closed reports whether pods are kept from the ports of nodes.
func (a HostAccess) Closed() bool { return a == HostNodes || a == HostNone }

// HostPort is a port of nodes. Its text form is the one of cluster.yaml, like 53/udp.
type HostPort struct {
	Port  uint16
	Proto string // "tcp" or "udp"
}

var (
	_ encoding.TextMarshaler   = HostPort{}
	_ encoding.TextUnmarshaler = (*HostPort)(nil)
)

func (p HostPort) String() string { return fmt.Sprintf("%d/%s", p.Port, p.Proto) }

// MarshalText implements encoding.TextMarshaler.
func (p HostPort) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *HostPort) UnmarshalText(text []byte) (err error) {
	*p, err = ParseHostPort(string(text))
	return err
}

// ParseHostPort reads a port as cluster.yaml has it.
func ParseHostPort(text string) (HostPort, error) {
	number, proto, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if p := (HostPort{uint16(n), proto}); err == nil && n > 0 && (proto == "tcp" || proto == "udp") && p.String() == text {
		return p, nil
	}
	return HostPort{}, fmt.Errorf("%q is not a port and its protocol, like 53/udp or 443/tcp", text)
}

// checkAccess checks s.Access. A prefix to deny may cover pod ranges, which stay reachable, but not be a part of one:
// that looks like a policy between pods, and would do nothing.
func (s State) checkAccess(bad *Invalid) {
	switch s.HostAccess {
	case "", HostAll, HostNodes, HostNone:
	default:
		bad.Addf("hostAccess", "%q is neither %q (every pod and node), %q (other nodes only) nor %q", s.HostAccess, HostAll, HostNodes, HostNone)
	}
	for i, p := range s.PodDenyCIDRs {
		field := fmt.Sprintf("podDenyCIDRs[%d]", i)
		if !checkPrefix(bad, field, p) {
			continue
		}
		for j, r := range s.PodCIDRs {
			if r.IsValid() && Inside([]netip.Prefix{r}, p) {
				bad.Addf(field, "%s is inside podCIDRs[%d] (%s): what pods may send to pods is said by NetworkPolicy", p, j, r)
			}
		}
	}
}
