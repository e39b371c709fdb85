package decide

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/mesh"
)

// two are machines of one LAN that have exchanged offers: a's peers are b and c.
type two struct {
	t         *testing.T
	now       time.Time
	a, b, c   *Machine
	aGateway  netip.Addr
	bGateway  netip.Addr
	connected func(mesh.PeerID) bool
}

func newTwo(t *testing.T) *two {
	t.Helper()
	w := &two{t: t, now: time.Unix(1000, 0), connected: func(mesh.PeerID) bool { return true }}
	members := []mesh.Node{
		{Name: "a", PeerID: "A", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}},
		{Name: "b", PeerID: "B", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
		{Name: "c", PeerID: "C", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}},
	}
	start := func(self int) *Machine {
		m := New(Config{Self: members[self].PeerID, Versions: [2]bool{true}, ProbePort: 5211, VXLANName: "vx", Inside: []string{"br"}, Secret: NewSecret})
		plan := mesh.Plan{Self: members[self]}
		for i, n := range members {
			if i != self {
				plan.Nodes = append(plan.Nodes, n)
			}
		}
		plan.Host.LAN = mesh.LAN{Native: true, ProbePort: 5211}
		m.SetPlan(w.now, plan, Off{VXLAN: "lan.vxlan is false"})
		m.SetUplinks(w.now, []mesh.Uplink{{Link: "eth0", Addr: netip.AddrFrom4([4]byte{192, 168, 1, byte(self + 1)}), Bits: 24, MTU: 1500, MAC: MAC{2, 0, 0, 0, 0, byte(self)}}})
		return m
	}
	w.a, w.b, w.c = start(0), start(1), start(2)
	w.aGateway, w.bGateway = mesh.Gateway(members[0].PodCIDRs[0]), mesh.Gateway(members[1].PodCIDRs[0])
	for id, m := range map[mesh.PeerID]*Machine{"B": w.b, "C": w.c} {
		w.exchange(id, m)
	}
	return w
}

// exchange is one of offers that a begins, when it wants to.
func (w *two) exchange(id mesh.PeerID, m *Machine) {
	w.t.Helper()
	x, err := m.Answer("A")
	if err != nil {
		w.t.Fatal(err)
	}
	y := w.a.offer(w.a.peer(id), w.now, w.connected)
	if y == nil || !w.a.Take(w.now, y, x.Us) || !m.Take(w.now, x, y.Us) {
		w.t.Fatal("no exchange")
	}
	w.a.Ended(w.now, y, nil)
	m.Ended(w.now, x, nil)
}

// Where one end drops what nodes send past the tunnel, and the other one sends it there, there is no LAN path; once both have the
// same membership there is one again. A release that does not know it offers as one whose hostAccess is all.
func TestHostAccessIsTheSameAtBothEnds(t *testing.T) {
	w := newTwo(t)
	set := func(m *Machine, access mesh.HostAccess) {
		plan := m.plan
		plan.Host.Access.HostAccess = access
		m.SetPlan(w.now, plan, m.off)
	}
	check := func(what string, paths bool, says string) {
		t.Helper()
		for id, m := range map[mesh.PeerID]*Machine{"B": w.a, "A": w.b} {
			st, _ := m.Status(id)
			if got := len(m.Candidates(id)) > 0; got != paths || says != "" && !strings.Contains(st.Reason, says) {
				t.Errorf("%s: candidates to %s: %v, %q", what, id, m.Candidates(id), st.Reason)
			}
		}
	}
	check("all at both ends", true, "")
	set(w.a, mesh.HostNodes)
	if c := w.a.Candidates("B"); len(c) > 0 { // without a connection, on which offers are exchanged
		t.Errorf("what a node drops from now on is still sent past the tunnel: %v", c)
	}
	w.exchange("B", w.b)
	check("nodes at one end", false, "hostAccess")
	set(w.b, mesh.HostNone)
	set(w.a, mesh.HostNone) // no other offer
	w.now = w.now.Add(offerMax)
	w.exchange("B", w.b)
	check("closed at both ends", true, "")
	set(w.b, mesh.HostAll)
	if !w.b.peers["A"].stale || w.a.peers["B"].stale {
		t.Error("only whose mode changes offers again")
	}
}

// packet is s as a hears it from b.
func (w *two) packet(s Send) Packet {
	m, err := Parse(s.Payload)
	if err != nil {
		w.t.Fatal(err)
	}
	return Packet{Message: m, From: w.bGateway, Link: "eth0", Payload: s.Payload, At: w.now}
}

// What is not exactly the peer's own packet, on exactly the candidate's path, proves
// nothing and opens nothing.
func TestStrangersProbes(t *testing.T) {
	for name, change := range map[string]func(w *two, k *Packet){
		"another source":             func(_ *two, k *Packet) { k.From = k.From.Next() },
		"an interface of pods":       func(_ *two, k *Packet) { k.Link = "br" },
		"the other kind's interface": func(_ *two, k *Packet) { k.Link = "vx" },
		"an interface that is gone":  func(_ *two, k *Packet) { k.Link = "" },
		"another key":                func(_ *two, k *Packet) { k.Payload = k.seal(make([]byte, 32), len(k.Payload)) },
		"our own, reflected":         func(w *two, k *Packet) { k.Payload = k.seal(w.a.peers["B"].sess.out, len(k.Payload)) },
		"another session":            func(w *two, k *Packet) { k.session++; k.resealed(w) },
		"another member's session":   func(w *two, k *Packet) { k.session = w.a.peers["C"].sess.id; k.resealed(w) },
		"another path":               func(w *two, k *Packet) { k.slot++; k.resealed(w) },
		"the other IP version":       func(_ *two, k *Packet) { k.V6 = true },
		"":                           nil, // the peer's own
	} {
		for _, typ := range []byte{typeRequest, typeAnswer} {
			w := newTwo(t)
			for range 200 {
				w.now = w.now.Add(20 * time.Millisecond)
				var heard []Send
				if typ == typeRequest {
					heard = w.b.Tick(w.now, w.connected).Probes
				} else {
					for _, s := range w.a.Tick(w.now, w.connected).Probes {
						if s.To.Addr() == w.bGateway {
							k := w.packet(s)
							k.From = w.aGateway
							answers, _ := w.b.Hear(k)
							heard = append(heard, answers...)
						}
					}
				}
				for _, s := range heard {
					if s.To.Addr() != w.aGateway {
						continue
					}
					k := w.packet(s)
					if change != nil {
						change(w, &k)
					}
					w.a.Hear(k)
				}
			}
			p := w.a.peers["B"]
			accepted, used := p.tracks[native4].accepts(w.now), p.works()
			if name == "" && (!accepted || used != (typ == typeAnswer)) {
				t.Errorf("the peer's own, type %d: accepted %v, used %v", typ, accepted, used)
			}
			if name != "" && (accepted || used) {
				t.Errorf("%s, type %d: accepted %v, used %v", name, typ, accepted, used)
			}
		}
	}
}

// resealed seals k as b would.
func (k *Packet) resealed(w *two) {
	k.Payload = k.seal(w.a.peers["B"].sess.in, len(k.Payload))
}

// An answer to what was never probed counts for nothing.
func TestUnaskedAnswer(t *testing.T) {
	w := newTwo(t)
	for i := range 100 {
		w.now = w.now.Add(20 * time.Millisecond)
		w.a.Tick(w.now, w.connected)
		p := w.a.peers["B"]
		k := Packet{Message: Message{typ: typeAnswer, session: p.sess.id, seq: 1<<40 + uint64(i)}, From: w.bGateway, Link: "eth0", At: w.now}
		k.Payload = k.seal(p.sess.in, 1500-headers(false))
		if w.a.Hear(k); p.works() {
			t.Fatal("a path is in use that nobody proved")
		}
	}
}

// Addresses that count as public, and pods', are not offered.
func TestOwnOffer(t *testing.T) {
	m := New(Config{Self: "A", Secret: NewSecret})
	plan := mesh.Plan{WAN: []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")}}
	plan.Host.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	m.SetPlan(time.Unix(1000, 0), plan, Off{})
	var uplinks []mesh.Uplink
	for _, a := range []string{"172.20.1.2", "10.244.1.1", "192.168.1.2", "5.5.5.5"} {
		uplinks = append(uplinks, mesh.Uplink{Link: "eth0", Addr: netip.MustParseAddr(a), Bits: 24, MTU: 1500})
	}
	m.SetUplinks(time.Unix(1000, 0), uplinks)
	if got := m.ownOffer().Addrs; len(got) != 1 || got[0].Addr != netip.MustParseAddr("192.168.1.2") {
		t.Errorf("offered: %v", got)
	}
}

// Whoever is not a member, or whose exchange is not the one that counts, is refused.
func TestAnswerRefuses(t *testing.T) {
	w := newTwo(t)
	if _, err := w.a.Answer("X"); !errors.Is(err, ErrNoMember) {
		t.Errorf("a stranger: %v", err)
	}
	w.now = w.now.Add(time.Hour)
	x := w.a.offer(w.a.peers["B"], w.now, w.connected)
	if x == nil {
		t.Fatal("no offer after an hour without a path")
	}
	if _, err := w.a.Answer("B"); !errors.Is(err, ErrBusy) {
		t.Errorf("beside our own exchange, which counts: %v", err)
	}
}

// Bytes that came in past the tunnel are counted by peer and kind of path, also after the kernel's counters were set again.
func TestReceived(t *testing.T) {
	id, other := mesh.PeerID("12D3KooWother"), mesh.PeerID("12D3KooWthird")
	block, unknown := netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("10.244.9.0/24")
	m := New(Config{})
	m.members[id] = member{blocks: []netip.Prefix{block}}
	m.members[other] = member{blocks: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}}
	m.peers[id], m.peers[other] = &peer{id: id}, &peer{id: other}
	native, vxlan := mesh.Inlet{Block: block, Link: "eth0"}, mesh.Inlet{Block: block}
	for _, counts := range []map[mesh.Inlet]mesh.Count{
		{native: {Packets: 1, Bytes: 100}, vxlan: {Packets: 2, Bytes: 30}},
		{native: {Packets: 2, Bytes: 150}, {Block: unknown}: {Packets: 1, Bytes: 7}},
		{native: {Packets: 1, Bytes: 40}, vxlan: {Packets: 1, Bytes: 10}}, // set again
	} {
		m.Traffic(time.Unix(0, 0), counts, true)
	}
	st, _ := m.Status(id)
	if third, _ := m.Status(other); st.Received != 100+30+50+40+10 || third.Received != 0 {
		t.Errorf("%d bytes of the peer, %d of the other one", st.Received, third.Received)
	}
	if got := m.Received(); got[mesh.Native] != 190 || got[mesh.VXLAN] != 47 {
		t.Errorf("by kind: %v", got)
	}
}

// What the kernel knows of the address says why no probe is answered; what it knows from before the silence says nothing.
func TestExplain(t *testing.T) {
	ours, other := MAC{2, 1}, MAC{2, 9}
	quiet := time.Unix(1000, 0)
	for name, x := range map[string]struct {
		mac       MAC
		confirmed time.Time
		want      string
	}{
		"nobody":                     {MAC{}, time.Time{}, Unresolved},
		"the peer":                   {ours, quiet.Add(time.Second), Filtered},
		"another":                    {other, quiet.Add(time.Second), Taken},
		"the peer, when it answered": {ours, quiet.Add(-time.Second), NoAnswer},
	} {
		m := New(Config{})
		c := candidate{kind: mesh.Native, link: "eth0", via: netip.MustParseAddr("192.168.1.12"), mac: ours, mtu: 1500}
		p := newPeer("a", "b")
		p.tracks[c.key()] = newTrack(c, quiet)
		p.tracks[c.key()].answered = quiet
		m.peers["b"] = p
		var out Orders
		for now := quiet.Add(time.Second); len(out.Silent) == 0 && now.Before(quiet.Add(time.Minute)); now = now.Add(proveEvery) {
			p.orderProbes(now, &out)
		}
		if len(out.Silent) != 1 || out.Silent[0].Link != "eth0" || out.Silent[0].Via != c.via {
			t.Fatalf("%s: %+v", name, out.Silent)
		}
		m.Explain(out.Silent[0], x.mac, x.confirmed)
		if got := p.tracks[c.key()].why; got != x.want {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
		m.Explain(Silence{Peer: "gone"}, x.mac, x.confirmed)
	}
}
