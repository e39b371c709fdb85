package signed

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
)

// MaxShown bounds a statement that a member shows about itself, in bytes: nine blocks of IPv6.
const MaxShown = 400

var (
	errOther  = errors.New("the statement is about another peer")
	errBanned = errors.New("a signed ban refuses it")
	errKnown  = errors.New("older than the statement that is known")
)

// Show takes what a peer, whose key the connection has shown, says of itself, and returns the name by which that makes it a member.
// Save keeps it. The error says why it is not a member.
func (b *Book) Show(raw string, id peer.ID) (name string, err error) {
	s, err := open(raw, whatever, true)
	switch {
	case err != nil:
		return "", err
	case len(raw) > MaxShown, s.Kind != Member:
		return "", ErrStatement
	case s.ID != id:
		return "", fmt.Errorf("%w, %s", errOther, s.ID)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err = b.add([]string{raw}, maxHeld)
	held, ok := b.held[s.subject()]
	switch {
	case err != nil:
		return "", err
	case !ok || held.ID != id:
		return "", errKnown
	}
	if _, err := b.member(mesh.Node{Name: s.Name}); err != nil {
		return "", err
	}
	if bans := b.bans(); slices.Contains(bans, s.Name) || slices.Contains(bans, id.String()) {
		return "", errBanned
	}
	return s.Name, nil
}

// Holds reports whether a statement was taken before.
func (b *Book) Holds(raw string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.raws[raw]
}

// Own is the statement about the node of that name and key, as Show takes it; "": there is none.
func (b *Book) Own(name string, id peer.ID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.held["m"+name]; x.ID == id && !x.Gone() && len(x.raw) <= MaxShown {
		return x.raw
	}
	return ""
}

// Members are all nodes that have a statement, for Apply to judge, ordered by name.
func (b *Book) Members() []mesh.Node {
	var out []mesh.Node
	for _, x := range b.Statements() {
		if x.Kind == Member && !x.Gone() {
			out = append(out, mesh.Node{Name: x.Name, PeerID: x.text, PodCIDRs: x.Blocks})
		}
	}
	return out
}

// Unsaid are those of nodes that nothing was said about, by name.
func (b *Book) Unsaid(nodes []mesh.Node) (out []mesh.Node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range nodes {
		if _, ok := b.held["m"+n.Name]; !ok {
			out = append(out, n)
		}
	}
	return out
}

// Since is for how long pinned keys have signed, as far as what they signed proves: by no clock of this node.
func (b *Book) Since() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.proven
	for _, x := range b.held {
		if b.pinned(x.Signer) {
			first = min(first, x.Epoch)
		}
	}
	return time.Duration(min(b.proven-first, maxLeap)) * time.Second
}

// Keys are those that may sign a member now: pinned ones, and their delegates.
func (b *Book) Keys() []peer.ID {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := slices.Clone(b.signers)
	for _, x := range b.held {
		if x.Kind == Delegation && b.delegate(x.ID) != nil {
			out = append(out, x.ID)
		}
	}
	return out
}
