package tunnel

import (
	"net/netip"

	"edgemesh/tunnel/inet"

	"github.com/gaissmai/bart"
)

// Route says who owns a prefix.
type Route struct {
	Prefix netip.Prefix
	Peer   PeerID
	Self   bool // the prefix is this node's own; Peer is ignored
}

// owner is a table entry.
type owner struct {
	peer   *peer // nil for the node's own blocks
	prefix netip.Prefix
}

// table is the one longest-prefix table for the checks of both directions. It is never changed, only replaced.
type table struct{ t bart.Table[owner] }

func (t *table) lookup(a netip.Addr) (owner, bool) { return t.t.Lookup(a) }

// own reports whether a belongs to this node.
func (t *table) own(a netip.Addr) bool {
	o, ok := t.t.Lookup(a)
	return ok && o.peer == nil
}

// admitSend finds the owner of a packet's destination. The reason is 0, DropSourceNotOwn or DropNoRoute; the latter also
// for the node's own blocks, which are behind the bridge, never behind the device.
func (t *table) admitSend(h *inet.Header) (owner, Reason) {
	if !t.own(h.Src) {
		return owner{}, DropSourceNotOwn
	}
	o, ok := t.lookup(h.Dst)
	if !ok || o.peer == nil {
		return owner{}, DropNoRoute
	}
	return o, 0
}

// admitReceive checks a packet that peer p sent. The reason is 0, DropSourceNotPeer or DropDestNotOwn.
func (t *table) admitReceive(p *peer, h *inet.Header) Reason {
	if o, ok := t.lookup(h.Src); !ok || o.peer != p {
		return DropSourceNotPeer
	}
	if !t.own(h.Dst) {
		return DropDestNotOwn
	}
	return 0
}
