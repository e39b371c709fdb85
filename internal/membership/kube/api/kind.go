package api

import (
	"net/netip"
	"net/url"
	"strings"
)

// Kind is one of the collections the membership is read from.
type Kind struct {
	Name    string // plural, as in the URL
	Kind    string // as in the JSON
	Group   string // "" is core/v1
	Version string // of Group
	Foreign bool   // the cluster may lack it, or forbid to read it
	New     func() Object

	Namespace string // "" is the cluster
	Selector  string // of labels, KEY=VALUE; "" is all
	Fields    string // likewise, of fields
}

// Kinds are those from which every membership is read; NodeRecords may stand for Nodes.
func Kinds() []Kind { return []Kind{PodNetworks(), Nodes(), MeshNodes(), PodBlocks()} }

// Nodes are core/v1.
func Nodes() Kind {
	return Kind{Name: "nodes", Kind: "Node", New: func() Object { return new(Node) }}
}

// MeshNodes are ours, as are those below.
func MeshNodes() Kind {
	return Kind{Name: "meshnodes", Kind: "MeshNode", Group: Group, Version: Version, New: func() Object { return new(MeshNode) }}
}

// NodeRecords stand for Nodes where a controller keeps them.
func NodeRecords() Kind {
	return Kind{Name: "noderecords", Kind: "NodeRecord", Group: Group, Version: Version, New: func() Object { return new(NodeRecord) }}
}

// PodBlocks are the claims of blocks.
func PodBlocks() Kind {
	return Kind{Name: "podblocks", Kind: "PodBlock", Group: Group, Version: Version, New: func() Object { return new(PodBlock) }}
}

// PodNetworks has one object, see NetworkName.
func PodNetworks() Kind {
	return Kind{Name: "podnetworks", Kind: "PodNetwork", Group: Group, Version: Version, New: func() Object { return new(PodNetwork) }}
}

// Path is the URL path of one object, or of the collection where name is "".
func (k Kind) Path(name string) string {
	p := "/api/v1"
	if k.Group != "" {
		p = "/apis/" + k.Group + "/" + k.Version
	}
	if k.Namespace != "" {
		p += "/namespaces/" + url.PathEscape(k.Namespace)
	}
	p += "/" + k.Name
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	return p
}

// BlockName is the one name a PodBlock of p may have: the CIDR in canonical form
// with '.', ':' and '/' as dashes, e.g. 10-244-1-0-24 and fd00-10-244-1---64.
func BlockName(p netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(p.Masked().String())
}
