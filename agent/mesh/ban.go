package mesh

import "slices"

// Bans reports whether s refuses a node or relay for good, by its name or by its peer ID; name may be "".
func (s State) Bans(name string, id PeerID) bool {
	return len(s.Banned) > 0 && (slices.Contains(s.Banned, string(id)) || name != "" && slices.Contains(s.Banned, name))
}

// Admitted is s without those that it bans. Whatever a source says of them, nobody lets them in.
func (s State) Admitted() State {
	if len(s.Banned) == 0 {
		return s
	}
	out := make(map[PeerID]bool) // a node that is banned by its name may be a relay, too
	s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n Node) bool {
		out[n.PeerID] = s.Bans(n.Name, n.PeerID)
		return out[n.PeerID]
	})
	s.Relays = slices.DeleteFunc(slices.Clone(s.Relays), func(r Relay) bool { return out[r.PeerID] || s.Bans("", r.PeerID) })
	return s
}
