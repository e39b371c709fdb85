package signed

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
)

var (
	errUnsigned = errors.New("no signed statement: run `edgemesh-agent membership sign` for it; where a controller signs, check its delegation")
	errExpired  = errors.New("its signed statement has expired: run `edgemesh-agent membership sign` for it")
	errGone     = errors.New("its newest signed statement says that it is gone")
)

// Problem is why a node of a membership does not count, or not as the source has it.
type Problem struct {
	Node string
	Err  error
}

// Error implements error.
func (p Problem) Error() string { return "node " + p.Node + ": " + p.Err.Error() }

// Apply is s as far as statements let it count: nodes with a statement, with that one's peer ID and blocks. self, "" for a
// relay, stays without one. Whom bans name is banned.
func (b *Book) Apply(s mesh.State, self string) (mesh.State, []Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var bad []Problem
	say := func(node, format string, args ...any) {
		bad = append(bad, Problem{node, fmt.Errorf(format, args...)})
	}
	all := make([]found, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		x, err := b.member(n)
		if err == nil && (x.PeerID != n.PeerID || !slices.Equal(x.PodCIDRs, n.PodCIDRs)) {
			say(n.Name, "the source says peer ID %s and blocks %v; its signed statement, which counts, says %s and %v", n.PeerID, n.PodCIDRs, x.PeerID, x.PodCIDRs)
			alone := mesh.State{PodCIDRs: s.PodCIDRs, Encryption: s.Encryption, Access: s.Access, Nodes: []mesh.Node{x.Node}}
			err = alone.Validate()
		}
		if n.Name == self {
			x.rank = 3
		}
		if err != nil {
			say(n.Name, "%w", err)
		}
		if len(s.PodCIDRs) == 0 {
			x.PodCIDRs = nil // of no use to a relay without a list, and a block may be another node's by now
		}
		if err == nil || n.Name == self {
			all = append(all, x)
		}
	}
	clash := contradictions(all)
	nodes := make([]mesh.Node, 0, len(all))
	for i := range all {
		if with, ok := clash[i]; ok {
			say(all[i].Name, "its signed statement contradicts that of %s (peer ID or block): sign another one for one of the two", all[with].Name)
			continue
		}
		nodes = append(nodes, all[i].Node)
	}
	s.Nodes, s.Signed = nodes, nil
	s.Banned = append(slices.Clone(s.Banned), b.bans()...)
	b.forget(s.Nodes)
	return s, bad
}

// found is a node, and how it ranks among those that contradict it.
type found struct {
	mesh.Node
	rank  int
	epoch uint64
}

// member is n as its statement has it. The caller holds mu.
func (b *Book) member(n mesh.Node) (found, error) {
	x, ok := b.held["m"+n.Name]
	if !ok {
		return found{Node: n}, errUnsigned
	}
	if err := b.authority(&x); err != nil {
		return found{Node: n}, err
	}
	switch {
	case x.Gone():
		return found{Node: n}, errGone
	case x.Expires != 0 && x.Expires <= b.proven:
		return found{Node: n}, errExpired
	}
	out := found{Node: n, epoch: x.Epoch, rank: 1}
	if b.pinned(x.Signer) {
		out.rank = 2
	}
	if x.text != n.PeerID {
		out.PeerID = x.text
	}
	if !slices.Equal(x.Blocks, n.PodCIDRs) {
		out.PodCIDRs = x.Blocks
	}
	return out, nil
}

// bans are whom bans name, and the peer IDs that they have or had, unless a newer statement of a pinned key about the name, or
// the peer ID, has lifted that. The caller holds mu.
func (b *Book) bans() (out []string) {
	var all []Signed
	for _, x := range b.held {
		if x.Kind == Ban {
			all = append(all, x)
		}
	}
	if len(all) == 0 {
		return nil
	}
	lifted, owner := map[string]uint64{}, map[peer.ID]Signed{}
	for _, x := range b.held {
		if x.Kind != Member || x.Gone() {
			continue
		}
		if other, ok := owner[x.ID]; !ok || b.first(&x, &other) {
			owner[x.ID] = x
		}
		if b.pinned(x.Signer) {
			lifted[x.Name], lifted[string(x.text)] = x.Epoch, max(lifted[string(x.text)], x.Epoch)
		}
	}
	for i := range all {
		if who := all[i].Who(); lifted[who] <= all[i].Epoch {
			out = append(out, who)
		}
		if all[i].Name == "" {
			continue
		}
		had := b.former[all[i].Name]
		if x, ok := b.held["m"+all[i].Name]; ok {
			had = append(slices.Clone(had), x)
		}
		for j := range had {
			// A delegate could ban whom it likes by giving a banned name that one's peer ID.
			other, ok := owner[had[j].ID]
			if lifted[string(had[j].text)] <= all[i].Epoch && !(ok && other.Name != all[i].Name && b.first(&other, &had[j])) {
				out = append(out, string(had[j].text))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// first reports whether s counts more than other where both have one peer ID: a pinned key's does, else the older one.
func (b *Book) first(s, other *Signed) bool {
	if mine, theirs := b.pinned(s.Signer), b.pinned(other.Signer); mine != theirs {
		return mine
	}
	return s.Epoch < other.Epoch
}

// contradictions are those that have to go, by index, and with whom each one shares its peer ID or a block.
func contradictions(all []found) map[int]int {
	out := map[int]int{}
	lose := func(i, j int) (loser int) { // the lower rank, else the newer one
		loser, other := i, j
		if cmp.Or(cmp.Compare(all[i].rank, all[j].rank), cmp.Compare(all[j].epoch, all[i].epoch), cmp.Compare(j, i)) > 0 {
			loser, other = j, i
		}
		out[loser] = other
		return loser
	}
	type block struct {
		netip.Prefix
		of int
	}
	var blocks []block
	ids := make(map[mesh.PeerID]int, len(all))
	for i := range all {
		if j, twice := ids[all[i].PeerID]; !twice || lose(i, j) == j {
			ids[all[i].PeerID] = i
		}
		for _, p := range all[i].PodCIDRs {
			blocks = append(blocks, block{p, i})
		}
	}
	slices.SortFunc(blocks, func(x, y block) int { return mesh.ComparePrefix(x.Prefix, y.Prefix) })
	last := -1
	for i := range blocks {
		if last < 0 || !blocks[last].Overlaps(blocks[i].Prefix) || blocks[last].of == blocks[i].of || lose(blocks[last].of, blocks[i].of) == blocks[last].of {
			last = i
		}
	}
	return out
}
