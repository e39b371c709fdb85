package mesh

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// RestrictedPrefix begins the names of the labels that a node cannot give itself: the API server's plugin
// NodeRestriction lets no kubelet write them.
const RestrictedPrefix = "node-restriction.kubernetes.io/"

// SiteLabel is the Node's label that names its site.
const SiteLabel = "topology.kubernetes.io/zone"

// MovedLabel is the label of nodes whose pods move from another network plugin to ours. Nodes that keep that plugin, and
// those on the way themselves, reach each other through the mesh, whatever routes the plugin has.
const MovedLabel = RestrictedPrefix + "edgemesh-moved"

// Bans reports whether s refuses a node or relay for good, by its name or by its peer ID; name may be "".
func (s State) Bans(name string, id PeerID) bool {
	return len(s.Banned) > 0 && (slices.Contains(s.Banned, string(id)) || name != "" && slices.Contains(s.Banned, name))
}

// BannedPeers are the peer IDs that s bans: those listed, among which may be names of unknown nodes, and those of the nodes
// that are listed by name.
func (s State) BannedPeers() []PeerID {
	if len(s.Banned) == 0 {
		return nil
	}
	out, at := make([]PeerID, len(s.Banned)), make(map[string]int, len(s.Banned))
	for i, entry := range s.Banned {
		out[i], at[entry] = PeerID(entry), i
	}
	for i := range s.Nodes {
		if j, ok := at[s.Nodes[i].Name]; ok {
			out[j] = s.Nodes[i].PeerID
		}
	}
	return out
}

// Carries reports whether n carries the label that s requires; if s requires none, every node does.
func (s State) Carries(n Node) bool {
	key, value, exact := strings.Cut(s.AdmitLabel, "=")
	has, ok := n.Labels[key]
	return s.AdmitLabel == "" || ok && (!exact || has == value)
}

// Admits reports whether n may take part.
func (s State) Admits(n Node) bool { return !s.Bans(n.Name, n.PeerID) && s.Carries(n) }

// Admitted is s without those that it bans, and without nodes that lack the label it requires. Whatever a source says
// of them, nobody lets them in.
func (s State) Admitted() State {
	if len(s.Banned) == 0 && s.AdmitLabel == "" {
		return s
	}
	banned := make(map[string]bool, len(s.Banned))
	for _, entry := range s.Banned {
		banned[entry] = true
	}
	out := make(map[PeerID]bool) // a node that is not admitted may be a relay, too
	for i := range s.Nodes {
		if n := &s.Nodes[i]; banned[n.Name] || banned[string(n.PeerID)] || !s.Carries(*n) {
			out[n.PeerID] = true
		}
	}
	if len(out) > 0 {
		s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n Node) bool { return out[n.PeerID] })
	}
	s.Relays = slices.DeleteFunc(slices.Clone(s.Relays), func(r Relay) bool { return out[r.PeerID] || banned[string(r.PeerID)] })
	return s
}

// labelForm is the name and, optionally, the value of a label, by Kubernetes' rules.
var labelForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?(=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?)?$`)

// CheckAdmitLabel reports what is wrong with a label that nodes are to carry; "" requires none.
func CheckAdmitLabel(label string) error {
	name, restricted := strings.CutPrefix(label, RestrictedPrefix)
	switch {
	case label == "":
		return nil
	case !restricted:
		return fmt.Errorf("%q does not begin with %s; any other label a node could give itself", label, RestrictedPrefix)
	case !labelForm.MatchString(name):
		return fmt.Errorf("%q is neither %sNAME nor %sNAME=VALUE", label, RestrictedPrefix, RestrictedPrefix)
	}
	return nil
}

// Observes reports whether the member of that peer ID, which may be this node, may query the whole status of others.
func (p Plan) Observes(id PeerID) bool {
	return len(p.Observers) > 0 && slices.ContainsFunc(p.Nodes, func(n Node) bool {
		return n.PeerID == id && (slices.Contains(p.Observers, string(id)) || slices.Contains(p.Observers, n.Name))
	})
}

// LabelArgument is the argument of `kubectl label` that gives a node the label.
func LabelArgument(label string) string {
	if strings.Contains(label, "=") {
		return label
	}
	return label + "="
}
