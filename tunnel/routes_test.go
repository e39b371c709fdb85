package tunnel

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestChangeRoutes: after any changes, a table is the one that SetRoutes makes of the same routes, those who stayed have the
// state that they had, and those who left have none.
func TestChangeRoutes(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		tun := New(Config{Device: &joiner{}, Log: slog.New(slog.DiscardHandler)})
		own := Route{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Self: true}
		tun.SetRoutes([]Route{own})
		owners := map[netip.Prefix]PeerID{}
		for range 60 {
			var c Change
			before := maps.Clone(owners)
			for range 1 + r.IntN(3) { // a member comes, goes, or gets other blocks; blocks change hands in one step
				id := PeerID(fmt.Sprint("peer", r.IntN(8)))
				if slices.Contains(c.Gone, id) {
					continue
				}
				c.Gone = append(c.Gone, id)
				maps.DeleteFunc(owners, func(_ netip.Prefix, of PeerID) bool { return of == id })
			}
			for _, id := range c.Gone {
				for range r.IntN(3) {
					b := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(1 + r.IntN(6)), 0}), 24)
					if r.IntN(3) == 0 {
						b = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(r.IntN(4) * 64)}), 26)
					}
					if _, taken := owners[b]; !taken {
						owners[b] = id
						c.Come = append(c.Come, Route{Prefix: b, Peer: id})
					}
				}
			}
			states := maps.Clone(tun.peers)
			tun.ChangeRoutes(c)
			checkTable(t, tun, owners)
			here := slices.Collect(maps.Values(owners))
			for id, p := range states {
				if stays := slices.Contains(here, id); stays != (tun.inUse(id) == p) || stays == (p.ctx.Err() != nil) {
					t.Fatalf("seed %d: %s: state kept %v, closed %v; want it to stay: %v", seed, id, tun.inUse(id) == p, p.ctx.Err() != nil, stays)
				}
			}
			for b, id := range owners { // talk to some
				if r.IntN(2) == 0 {
					continue
				}
				if p := tun.peer(id); p == nil || p != tun.inUse(id) {
					t.Fatalf("seed %d: %s has no state; before %v, now %v", seed, b, before, owners)
				}
			}
		}
		tun.Close()
		if tun.peer("peer1") != nil {
			t.Fatal("a closed tunnel makes state")
		}
	}
}

func checkTable(t *testing.T, tun *Tunnel, owners map[netip.Prefix]PeerID) {
	t.Helper()
	routes := []Route{{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Self: true}}
	for b, id := range owners {
		routes = append(routes, Route{Prefix: b, Peer: id})
	}
	fresh := New(Config{Device: &joiner{}, Log: slog.New(slog.DiscardHandler)})
	defer fresh.Close()
	fresh.SetRoutes(routes)
	got, want := tun.table.Load().t, fresh.table.Load().t
	if got.Size() != want.Size() || len(tun.members) != len(fresh.members) {
		t.Fatalf("%d routes of %d members, want %d of %d", got.Size(), len(tun.members), want.Size(), len(fresh.members))
	}
	for b, w := range want.All() {
		g, ok := got.Get(b)
		if !ok || (g == nil) != (w == nil) || g != nil && (g.id != w.id || tun.members[g.id] != g || g.used.Load() != tun.inUse(g.id)) {
			t.Fatalf("%s: %+v, want %+v", b, g, w)
		}
	}
}

// TestStateBeginsWithTraffic: a member that nobody talked to has none, and one that has left gets none.
func TestStateBeginsWithTraffic(t *testing.T) {
	tun, _, _ := joined(t)
	m := tun.members["p"]
	if m == nil || len(tun.Stats().Peers) != 1 {
		t.Fatalf("members %v, in use %v", tun.members, tun.Stats().Peers) // the sink's
	}
	tun.SetRoutes([]Route{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Peer: "q"}})
	if q := tun.members["q"]; q.used.Load() != nil || tun.talkTo(q) == nil || tun.talkTo(q) != tun.inUse("q") {
		t.Error("the state does not begin with the first packet")
	}
	tun.PathChanged("r")
	if tun.peer("p") != nil || tun.talkTo(&member{id: "p"}) != nil {
		t.Error("a peer that has left gets state")
	}
}
