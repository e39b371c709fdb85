package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Pod is what policies need of one.
type Pod struct {
	Namespace, Name string
	Labels          map[string]string
	Addrs           []netip.Addr
	Ports           []ContainerPort
	HostNetwork     bool // it has the node's addresses: it is the node, and no policy applies to it
	Ended           bool // succeeded or failed: its address may be another's
}

// ContainerPort is a port that a container names.
type ContainerPort struct {
	NamedPort
	Number uint16
}

// NamedPort is a port by name.
type NamedPort struct {
	Name     string
	Protocol byte // of IP
}

// counts reports whether policies know the pod.
func (p Pod) counts() bool { return !p.HostNetwork && !p.Ended }

// Group selects pods as peers.
type Group struct {
	Namespace  string          // "": by namespaces
	namespaces labels.Selector // nil: Namespace
	pods       labels.Selector
	port       NamedPort // with a name: the addresses and ports of containers that have it
}

// everyPod is the group of all pods in all namespaces.
func everyPod() Group { return Group{namespaces: labels.Everything(), pods: labels.Everything()} }

// ID names the group by what it selects, so that policies with the same peers share it: 128 bits of a hash, since tenants choose the text.
func (g Group) ID() string {
	sum := sha256.Sum256([]byte(g.text()))
	return hex.EncodeToString(sum[:16])
}

// Former is the name that a group of that ID had in the release before.
func Former(id string) string { return id[:min(16, len(id))] }

// maxSelector bounds Selector, bytes.
const maxSelector = 512

// Selector is what the group selects, for an object to state. Two groups never share it.
func (g Group) Selector() string {
	namespaces := ""
	if g.namespaces != nil {
		namespaces = "*" // no selector reads so
		if text := g.namespaces.String(); text != "" {
			namespaces = text
		}
	}
	text := fmt.Sprintf("namespace %q, namespaces %q, pods %q, port %q of protocol %d", g.Namespace, namespaces, g.pods.String(), g.port.Name, g.port.Protocol)
	if len(text) > maxSelector {
		return fmt.Sprintf("sha256 %x", sha256.Sum256([]byte(text)))
	}
	return text
}

func (g Group) text() string {
	namespaces := "\x00" + g.Namespace
	if g.namespaces != nil {
		namespaces = g.namespaces.String()
	}
	return strings.Join([]string{namespaces, g.pods.String(), g.port.Name, string(rune(g.port.Protocol))}, "\x01")
}

// Member is an address of a pod in a group; in a group of a named port with that port.
type Member struct {
	Addr     netip.Addr `json:"addr"`
	Protocol byte       `json:"protocol,omitempty"`
	Port     uint16     `json:"port,omitempty"`
}

// Members lists who is in the group, each once, in order. namespaces are the labels of those that exist: a pod of another one is in
// no group.
func (g Group) Members(namespaces map[string]map[string]string, pods []Pod) []Member {
	in := map[string]bool{}
	for name, l := range namespaces {
		in[name] = name == g.Namespace || g.namespaces != nil && g.namespaces.Matches(labels.Set(l))
	}
	var out []Member
	for _, p := range pods {
		if in[p.Namespace] {
			out = append(out, g.selected(p)...)
		}
	}
	return Sorted(out)
}

// Of is what one pod adds to the group. namespace are the labels of its namespace, which exists.
func (g Group) Of(namespace map[string]string, p Pod) []Member {
	if p.Namespace != g.Namespace && (g.namespaces == nil || !g.namespaces.Matches(labels.Set(namespace))) {
		return nil
	}
	return g.selected(p)
}

// selected is what a pod of a namespace that counts adds.
func (g Group) selected(p Pod) (out []Member) {
	if !p.counts() || !g.pods.Matches(labels.Set(p.Labels)) {
		return nil
	}
	for _, a := range p.Addrs {
		if g.port.Name == "" {
			out = append(out, Member{Addr: a})
		}
		for _, c := range p.Ports {
			if g.port.Name != "" && c.NamedPort == g.port {
				out = append(out, Member{a, c.Protocol, c.Number})
			}
		}
	}
	return out
}

// Sorted puts members in order, each once, as Rules need them.
func Sorted(all []Member) []Member {
	slices.SortFunc(all, Member.compare)
	return slices.Compact(all)
}

// String is the address, and for a named port the address, protocol and number, like 10.244.1.5/tcp/8080.
func (m Member) String() string {
	for name, p := range protocols {
		if p == m.Protocol {
			return fmt.Sprintf("%s/%s/%d", m.Addr, strings.ToLower(name), m.Port)
		}
	}
	return m.Addr.String()
}

// ParseMember reads what String returns.
func ParseMember(text string) (m Member, err error) {
	addr, at, named := strings.Cut(text, "/")
	if m.Addr, err = netip.ParseAddr(addr); err != nil || m.Addr.Zone() != "" || m.Addr.Is4In6() {
		return Member{}, fmt.Errorf("%.80q is not an address, or ADDRESS/PROTOCOL/PORT", text)
	}
	if !named {
		return m, nil
	}
	protocol, number, _ := strings.Cut(at, "/")
	port, err := strconv.ParseUint(number, 10, 16)
	m.Protocol, m.Port = protocols[strings.ToUpper(protocol)], uint16(port)
	if err != nil || m.String() != text {
		return Member{}, fmt.Errorf("%.80q is not an address, or ADDRESS/PROTOCOL/PORT", text)
	}
	return m, nil
}

func (m Member) compare(o Member) int {
	if c := m.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	return int(m.Protocol)<<16 + int(m.Port) - int(o.Protocol)<<16 - int(o.Port)
}
