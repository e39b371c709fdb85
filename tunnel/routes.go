package tunnel

import (
	"maps"
	"net/netip"
	"sync/atomic"

	"edgemesh/tunnel/inet"

	"github.com/gaissmai/bart"
)

// Route says who owns a prefix.
type Route struct {
	Prefix netip.Prefix
	Peer   PeerID
	Self   bool // the prefix is this node's own; Peer is ignored
}

// Change says which members' routes are others now.
type Change struct {
	Gone []PeerID // all routes of these end
	Come []Route  // and these begin, of new members or of those that are gone
}

// member is a peer as the table knows it. Most are never talked to, and have nothing else.
type member struct {
	id     PeerID
	blocks []netip.Prefix       // the table's
	used   atomic.Pointer[peer] // nil before the first packet, in either direction
}

// table is the one longest-prefix table for the checks of both directions. It is never changed, only replaced. The node's
// own blocks have a nil member.
type table struct{ t *bart.Table[*member] }

func newTable() *table { return &table{t: new(bart.Table[*member])} }

// own reports whether a belongs to this node.
func (t *table) own(a netip.Addr) bool {
	m, ok := t.t.Lookup(a)
	return ok && m == nil
}

// gateway is the first address of the member's block that has a, and a itself if no block has it.
func (t *table) gateway(a netip.Addr) (gateway netip.Addr, own bool) {
	block, m, ok := t.t.LookupPrefixLPM(netip.PrefixFrom(a, a.BitLen()))
	if !ok {
		return a, false
	}
	return block.Addr().Next(), m == nil
}

// admitSend finds whose a packet's destination is. The reason is 0, DropSourceNotOwn or DropNoRoute; the latter also
// for the node's own blocks, which are behind the bridge, never behind the device.
func (t *table) admitSend(h *inet.Header) (*member, Reason) {
	if !t.own(h.Src) {
		return nil, DropSourceNotOwn
	}
	m, ok := t.t.Lookup(h.Dst)
	if !ok || m == nil {
		return nil, DropNoRoute
	}
	return m, 0
}

// admitReceive checks a packet that peer p sent. The reason is 0, DropSourceNotPeer or DropDestNotOwn.
func (t *table) admitReceive(p *peer, h *inet.Header) Reason {
	if m, ok := t.t.Lookup(h.Src); !ok || m == nil || m.used.Load() != p {
		return DropSourceNotPeer
	}
	if !t.own(h.Dst) {
		return DropDestNotOwn
	}
	return 0
}

// SetRoutes replaces the table. A peer that no route names is closed and its queues are freed; a peer whose prefixes
// changed keeps its carriers. Of two equal prefixes the later one counts.
func (t *Tunnel) SetRoutes(routes []Route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	tab, kept := newTable(), make(map[PeerID]*member, len(routes))
	for _, r := range routes {
		block := unmap(r.Prefix).Masked()
		tab.t.Insert(block, enlist(t, kept, r, block))
	}
	gone := t.members
	t.members = kept
	t.table.Store(tab)
	for id := range gone {
		if kept[id] == nil {
			dismiss(t, id)
		}
	}
}

// ChangeRoutes changes the table, at a cost that depends on the change and not on how many routes there are. Otherwise it
// is SetRoutes: peers that are gone and do not come again are closed. The node's own routes stay.
func (t *Tunnel) ChangeRoutes(c Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	tab, gone, come := t.table.Load().t, map[PeerID]bool{}, map[PeerID]*member{}
	for _, id := range c.Gone {
		m := t.members[id]
		if m == nil {
			continue
		}
		gone[id] = true
		delete(t.members, id)
		for _, b := range m.blocks {
			if at, ok := tab.Get(b); ok && at == m { // it may be another's by now
				tab = tab.DeletePersist(b)
			}
		}
	}
	for _, r := range c.Come {
		if m := t.members[r.Peer]; m != nil {
			come[r.Peer] = m // one block more
		}
		block := unmap(r.Prefix).Masked()
		tab = tab.InsertPersist(block, enlist(t, come, r, block))
	}
	maps.Copy(t.members, come)
	t.table.Store(&table{t: tab})
	for id := range gone {
		if come[id] == nil {
			dismiss(t, id)
		}
	}
}

// enlist adds a route to those of its member, nil for the node's own. One that was used keeps its state. t.mu is held.
func enlist(t *Tunnel, in map[PeerID]*member, r Route, block netip.Prefix) *member {
	if r.Self {
		return nil
	}
	m := in[r.Peer]
	if m == nil {
		m = &member{id: r.Peer}
		m.used.Store(t.peers[r.Peer])
		in[r.Peer] = m
	}
	m.blocks = append(m.blocks, block)
	return m
}

// dismiss closes what there is of a peer that has left. t.mu is held.
func dismiss(t *Tunnel, id PeerID) {
	if p := t.peers[id]; p != nil {
		delete(t.peers, id)
		p.close()
		t.lost.add(p.counters.snapshot())
	}
}

// unmap turns an IPv4-in-IPv6 prefix into the IPv4 one.
func unmap(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// peer is the state of a member, which is made if it has none yet; nil for others.
func (t *Tunnel) peer(id PeerID) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return stateOf(t, t.members[id])
}

// talkTo is the state of a member as the table has it, nil if it has left since.
func (t *Tunnel) talkTo(m *member) *peer {
	if p := m.used.Load(); p != nil {
		return p
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.members[m.id] != m {
		return nil
	}
	return stateOf(t, m)
}

// stateOf makes the state of a member that has none yet. t.mu is held.
func stateOf(t *Tunnel, m *member) *peer {
	if m == nil || t.closed {
		return nil
	}
	p := m.used.Load()
	if p == nil {
		p = newPeer(t, m.id)
		t.peers[m.id] = p
		m.used.Store(p)
	}
	return p
}
