package source

import (
	"log/slog"
	"slices"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
)

const (
	// mostLines is how many joined and left members one change logs by name.
	mostLines = 20
	// mostGone is how many members that left are remembered.
	mostGone = 4096
)

// Reporter logs by name who joins, leaves, is banned, or has another peer ID or other blocks than before. Its owner locks it.
type Reporter struct {
	Log  *slog.Logger
	gone map[string]mesh.PeerID // members that left, by name: one that returns with another key is not new
}

// Restarted logs what became of the members while this program was off: s is in force, dir has the snapshot of before.
func (r *Reporter) Restarted(dir string, s mesh.State) {
	if was, err := snapshot.Load(dir); err == nil {
		r.Report(mesh.Diff(was.Admitted().Nodes, s.Said().Admitted().Nodes), s)
	}
}

// Report logs what became of the members of s.
func (r *Reporter) Report(c mesh.Change, s mesh.State) {
	if r.gone == nil {
		r.gone = map[string]mesh.PeerID{}
	}
	left := mesh.ByName(c.Gone)
	come := mesh.ByName(c.Come)
	lines := 0
	line := func(what string, n mesh.Node) {
		if lines++; lines <= mostLines {
			r.Log.Info(what, "node", n.Name, "peer", n.PeerID)
		}
	}
	for _, n := range c.Come {
		was, changes := left[n.Name]
		before := was.PeerID
		if !changes {
			before = r.gone[n.Name]
		}
		delete(r.gone, n.Name)
		if before != "" && before != n.PeerID {
			r.Log.Warn("a member's peer ID changed: from now on the holder of another key is this node. If the node was not installed again, find out who "+
				"changed it in the membership, and ban the name", "node", n.Name, "peer", n.PeerID, "before", before)
		} else if !changes {
			line("member joined", n)
		} else if !slices.Equal(was.PodCIDRs, n.PodCIDRs) {
			r.Log.Info("a member's blocks changed", "node", n.Name, "peer", n.PeerID, "blocks", n.PodCIDRs, "before", was.PodCIDRs)
		}
	}
	for _, n := range c.Gone {
		if _, stays := come[n.Name]; stays {
			continue
		}
		if len(r.gone) >= mostGone {
			for any := range r.gone {
				delete(r.gone, any)
				break
			}
		}
		r.gone[n.Name] = n.PeerID
		if s.Bans(n.Name, n.PeerID) {
			line("member banned", n)
		} else {
			line("member left", n)
		}
	}
	if lines > mostLines {
		r.Log.Info("more members joined or left", "count", lines-mostLines)
	}
}
