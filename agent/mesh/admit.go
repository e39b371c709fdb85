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

// Bans reports whether s refuses a node or relay for good, by its name or by its peer ID; name may be "".
func (s State) Bans(name string, id PeerID) bool {
	return len(s.Banned) > 0 && (slices.Contains(s.Banned, string(id)) || name != "" && slices.Contains(s.Banned, name))
}

// BannedPeers are the peer IDs that s bans: those listed, among which may be names of unknown nodes, and those of the nodes
// that are listed by name.
func (s State) BannedPeers() []PeerID {
	var out []PeerID
	for _, entry := range s.Banned {
		if n, ok := s.Node(entry); ok {
			out = append(out, n.PeerID)
		} else {
			out = append(out, PeerID(entry))
		}
	}
	return out
}

// Carries reports whether n carries the label that s asks for; without one every node does.
func (s State) Carries(n Node) bool {
	key, value, exact := strings.Cut(s.AdmitLabel, "=")
	has, ok := n.Labels[key]
	return s.AdmitLabel == "" || ok && (!exact || has == value)
}

// Admits reports whether n may take part.
func (s State) Admits(n Node) bool { return !s.Bans(n.Name, n.PeerID) && s.Carries(n) }

// Admitted is s without those that it bans, and without nodes that lack the label it asks for. Whatever a source says
// of them, nobody lets them in.
func (s State) Admitted() State {
	if len(s.Banned) == 0 && s.AdmitLabel == "" {
		return s
	}
	out := make(map[PeerID]bool) // a node that is not admitted may be a relay, too
	s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n Node) bool {
		out[n.PeerID] = !s.Admits(n)
		return out[n.PeerID]
	})
	s.Relays = slices.DeleteFunc(slices.Clone(s.Relays), func(r Relay) bool { return out[r.PeerID] || s.Bans("", r.PeerID) })
	return s
}

// labelForm is the name and, optionally, the value of a label, by Kubernetes' rules.
var labelForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?(=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?)?$`)

// CheckAdmitLabel reports what is wrong with a label to ask of nodes, nil if it may be one; "" asks for none.
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

// Observes reports whether the member of that peer ID, which may be this node, may ask others for their whole status.
func (p Plan) Observes(id PeerID) bool {
	listed := func(n Node) bool {
		return n.PeerID == id && (slices.Contains(p.Observers, string(id)) || slices.Contains(p.Observers, n.Name))
	}
	return listed(p.Self) || slices.ContainsFunc(p.Members, listed)
}

// LabelArgument is how `kubectl label` is told to give a node the label.
func LabelArgument(label string) string {
	if strings.Contains(label, "=") {
		return label
	}
	return label + "="
}
