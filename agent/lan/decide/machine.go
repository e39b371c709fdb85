package decide

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

// chooseEvery is how often all peers are checked, also those with nothing due, while a path is in use, and restEvery
// otherwise: the packets of a peer that was silent for long enough are no longer let in.
const (
	chooseEvery = time.Second
	restEvery   = 10 * time.Second
)

// Config is what a Machine needs to know of this node.
type Config struct {
	Self     mesh.PeerID
	Versions [2]bool // IP versions of which this node has a gateway: IPv4, IPv6
	// ProbePort is where probes are received, VXLANName the interface on which VXLAN's
	// arrive; on those in Inside none do.
	ProbePort uint16
	VXLANName string
	TUNName   string // the tunnel's interface
	Inside    []string
	Secret    func() []byte // makes half of a key: 32 fresh random bytes
}

// Machine decides for all peers. It has no clock and does no I/O: calls that
// need the time are given it, and they return what is to be done. They must not overlap.
type Machine struct {
	cfg       Config
	plan      mesh.Plan
	off       Off
	uplinks   []mesh.Uplink
	members   map[mesh.PeerID]member // all others of plan
	peers     map[mesh.PeerID]*peer
	sessions  map[uint64]*peer
	probers   map[netip.Addr]*peer // who sends forwarded probes from there
	arrived   arrived
	chosen    time.Time // when all peers were checked
	unapplied bool      // Paths have changed since the last call
	// probeAddrs are where forwarded probes are taken.
	probeAddrs [2]netip.Addr
	changes    []Change
}

// member is what is used of a node.
type member struct {
	name   string
	blocks []netip.Prefix
}

// Change is a path that is in use now, or is no longer.
type Change struct {
	Peer   string // its name
	V6     bool   // of the pods
	Kind   mesh.PathKind
	Via    netip.Addr
	Link   string
	Reason string // why no better one is used, "" where there is none
}

// New returns a machine without members.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg, arrived: arrived{received: map[mesh.PathKind]uint64{}},
		members: map[mesh.PeerID]member{}, peers: map[mesh.PeerID]*peer{}, sessions: map[uint64]*peer{}, probers: map[netip.Addr]*peer{}}
}

// SetPlan brings the membership into force; off says why this node takes no part.
func (m *Machine) SetPlan(now time.Time, plan mesh.Plan, off Off) {
	otherVXLAN := m.plan.Host.LAN.IPv6Underlay != plan.Host.LAN.IPv6Underlay
	otherTrust := !slices.Equal(m.plan.Trust.Trusted, plan.Trust.Trusted)
	closed := plan.Host.Access.HostAccess.Closed()
	otherAccess := m.plan.Host.Access.HostAccess.Closed() != closed
	otherOffer := otherVXLAN || otherTrust || otherAccess || m.off != off
	m.follow(plan)
	m.plan, m.off, m.unapplied = plan, off, true
	for id, p := range m.peers {
		n, ok := m.members[id]
		if !ok {
			m.endSession(p, now)
			delete(m.peers, id)
			continue
		}
		if p.describe(n.blocks, m.cfg.Versions) {
			m.endSession(p, now) // its gateways or IP versions are others now
		}
		if otherAccess && p.sess != nil && p.them.PodsOnly != closed {
			m.endSession(p, now) // one end drops what the other sends; offers await a connection, and the end of probes none
		}
		if otherOffer {
			p.stale, p.pause, p.nextOffer = true, 0, now
		}
		if off.Native != "" {
			p.exclude(mesh.Native)
		}
		if off.VXLAN != "" || otherVXLAN {
			p.exclude(mesh.VXLAN)
		}
		if otherTrust {
			p.distrust(plan.Trust)
		}
		m.choose(p, now)
	}
}

// follow brings the members up to date with the plan that follows.
func (m *Machine) follow(plan mesh.Plan) {
	if m.plan.Self.Name != plan.Self.Name {
		clear(m.members)
		m.plan = mesh.Plan{}
	}
	c := plan.Since(m.plan)
	for _, n := range c.Gone {
		delete(m.members, n.PeerID)
	}
	for _, n := range c.Come {
		if n.Name != plan.Self.Name {
			m.members[n.PeerID] = member{n.Name, n.PodCIDRs}
		}
	}
}

// Name is a member's name, "" for others.
func (m *Machine) Name(id mesh.PeerID) string { return m.members[id].name }

// SetUplinks says which addresses this node has now. It reports whether they changed.
func (m *Machine) SetUplinks(now time.Time, all []mesh.Uplink) bool {
	if slices.Equal(all, m.uplinks) {
		return false
	}
	m.uplinks, m.unapplied = all, true
	for _, p := range m.peers {
		p.addressesChanged(all, now)
		m.choose(p, now)
	}
	return true
}

// Used says that the tunnel carries packets to a member, so that there is a connection.
func (m *Machine) Used(now time.Time, id mesh.PeerID) {
	p := m.peer(id)
	if p != nil && !p.works() && p.sess != nil && p.pause > offerMin { // a new connection: perhaps elsewhere
		p.pause = 0
		p.nextOffer = minTime(p.nextOffer, now.Add(offerSoon))
	}
}

// peer returns the state of a member, nil for others.
func (m *Machine) peer(id mesh.PeerID) *peer {
	n, ok := m.members[id]
	if !ok {
		return nil
	}
	p := m.peers[id]
	if p == nil {
		p = newPeer(m.cfg.Self, id)
		p.describe(n.blocks, m.cfg.Versions)
		p.forwards[0].ours, p.forwards[1].ours = m.probeAddrs[0], m.probeAddrs[1]
		m.peers[id] = p
	}
	return p
}

func (m *Machine) endSession(p *peer, now time.Time) {
	for id, o := range m.sessions {
		if o == p {
			delete(m.sessions, id)
		}
	}
	for v := range p.forwards {
		delete(m.probers, p.forwards[v].theirs)
		p.forwards[v].theirs = netip.Addr{}
		p.forwards[v].again(now)
	}
	p.drop()
	p.choose()
	m.unapplied = p.plan(now) || m.unapplied
}

// choose chooses a peer's paths again.
func (m *Machine) choose(p *peer, now time.Time) {
	for _, v := range p.choose() {
		c := Change{Peer: m.members[p.id].name, V6: v == 1, Reason: p.reason(v == 1, m.off)}
		if t := p.using[v]; t != nil {
			c.Kind, c.Via, c.Link = t.c.kind, t.c.via, t.c.link
		}
		m.changes = append(m.changes, c)
	}
	m.unapplied = p.plan(now) || m.unapplied
}

// Paths is what the kernel should hold. changed says whether it differs from the last call's.
func (m *Machine) Paths() (paths mesh.Paths, changed bool) {
	if !m.unapplied {
		return mesh.Paths{}, false
	}
	m.unapplied = false
	var all []mesh.Candidate
	for _, p := range m.peers {
		all = append(all, p.wanted...)
	}
	paths = m.plan.PathsTo(all, func(id mesh.PeerID) []netip.Prefix { return m.members[id].blocks })
	paths.Probers = slices.Collect(maps.Keys(m.probers))
	for _, w := range all {
		if w.Slot == tunnelSlot {
			paths.Probes = append(paths.Probes, mesh.ProbeRoute{Target: w.Aside, Slot: w.Slot, Hop: mesh.Hop{Link: m.cfg.TUNName}})
		}
	}
	return paths, true
}

// Again makes the next Paths return them in any case: the kernel may have lost some.
func (m *Machine) Again() { m.unapplied = true }

// Changes returns what has changed since the last call.
func (m *Machine) Changes() []Change {
	out := m.changes
	m.changes = nil
	return out
}

// InUse reports whether any path is in use.
func (m *Machine) InUse() bool {
	for _, p := range m.peers {
		if p.works() {
			return true
		}
	}
	return false
}

// Traffic takes the counters of packets by where they came in. known is false where they
// cannot be read: each path then counts as carrying some.
func (m *Machine) Traffic(now time.Time, counts map[mesh.Inlet]mesh.Count, known bool) {
	for _, p := range m.peers {
		for _, t := range p.tracks {
			if !t.usable() {
				continue
			}
			link := cmp.Or(t.in, t.c.link)
			if t.c.kind == mesh.VXLAN {
				link = ""
			}
			for _, b := range m.members[p.id].blocks {
				k := mesh.Inlet{Block: b.Masked(), Link: link}
				_, sent := counts[mesh.Inlet{Block: b.Masked(), Out: true}]
				sent = sent && p.using[version(t.c.v6)] == t
				if b.Addr().Is6() == t.c.v6 && (!known || sent || counts[k].Packets > m.arrived.inlets[k].Packets) {
					t.traffic(now)
				}
			}
		}
	}
	m.arrived.count(counts, m.owners())
}

// Status is that of one member; ok is false when nothing is known of it.
func (m *Machine) Status(id mesh.PeerID) (st Status, ok bool) {
	p := m.peers[id]
	if p == nil {
		return Status{}, false
	}
	return p.status(m.off), true
}

// owners are the peers by their blocks.
func (m *Machine) owners() map[netip.Prefix]*peer {
	out := make(map[netip.Prefix]*peer, len(m.peers))
	for _, p := range m.peers {
		for _, b := range m.members[p.id].blocks {
			out[b.Masked()] = p
		}
	}
	return out
}

// Received is how many bytes have come in past the tunnel, by kind of path.
func (m *Machine) Received() map[mesh.PathKind]uint64 { return maps.Clone(m.arrived.received) }
