package kube

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/internal/wake"
)

// A controller with the same membership spares lists; with another one, at two looks in a row, everything is listed again. One that does
// not say neither spares nor costs any.
func TestControllerAgrees(t *testing.T) {
	w, _ := newRecordsWorld(t)
	var relisted []string
	w.loop.known.relist = func(name string) { relisted = append(relisted, name) }
	src := &w.loop.source
	src.depends = wake.NewOne()
	w.hears(theirs(w.loop.known.last.Digest())) // of an API server's agents, nobody asks
	src.agreed = new(atomic.Pointer[time.Time])
	looks := func(digest string, agrees, again, lists bool) {
		t.Helper()
		src.agreed.Store(nil)
		relisted = nil
		w.hears(theirs(digest))
		woken := false
		select {
		case <-src.depends:
			woken = true
		default:
		}
		if (src.agreed.Load() != nil) != agrees || woken != again || (len(relisted) > 0) != lists {
			t.Errorf("%q: agreed %v, looks again %v, lists %v; want %v, %v, %v", digest, src.agreed.Load(), woken, relisted, agrees, again, lists)
		}
	}
	same := w.loop.known.last.Digest()
	looks(same, true, false, false)
	looks("", false, false, false)
	looks("other", false, true, false) // an event may be under way
	looks(same, true, false, false)
	looks("other", false, true, false)
	looks("other", false, false, true)
	slices.Sort(relisted)
	if want := []string{"meshnodes", "noderecords", "nodes", "podblocks", "podnetworks"}; !slices.Equal(relisted, want) {
		t.Errorf("listed %v, want %v", relisted, want)
	}
	looks("other", false, true, false) // at most once in two looks
}

// What one watch lost, the digest has: each member's key, block and label, and the network's settings; but not what only a node itself knows.
func TestDigest(t *testing.T) {
	w := newWorld(t)
	w.list(true, w.lists)
	s := w.loop.known.last
	whole := s.Digest()
	s.Nodes = slices.Clone(s.Nodes)
	s.Nodes[0].NodeIPs, s.Nodes[0].Unreported = []netip.Addr{netip.MustParseAddr("10.0.0.1")}, true
	s.PolicyProved = !s.PolicyProved
	if s.Digest() != whole {
		t.Error("what this node alone knows is in the digest")
	}
	for name, change := range map[string]func(){
		"a member":        func() { s.Nodes = s.Nodes[:2] },
		"a key":           func() { s.Nodes[1].PeerID = s.Nodes[0].PeerID },
		"a block":         func() { s.Nodes[1].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")} },
		"a label":         func() { s.Nodes[1].Labels = map[string]string{"a": "b"} },
		"a ban":           func() { s.Banned = []string{"b"} },
		"a statement":     func() { s.Signed = []string{"x"} },
		"policies":        func() { s.PolicyNamespaces = map[string]string{"default": "Ingress"} },
		"access to hosts": func() { s.HostAccess = "none" },
	} {
		was := s
		was.Nodes = slices.Clone(s.Nodes)
		before := s.Digest()
		if change(); s.Digest() == before {
			t.Errorf("%s is not in the digest", name)
		}
		s = was
	}
	if s.Digest() != whole {
		t.Error("the digest changes without a change")
	}
	// A relay, which reads only, has the same one.
	relay := newWorld(t)
	relay.source.cfg.ReadOnly = true
	relay.loop.known.cfg.ReadOnly, relay.loop.known.cfg.NodeName = true, ""
	relay.lists = w.lists
	relay.list(true, relay.lists)
	if got := relay.loop.known.last.Digest(); got != whole {
		t.Errorf("a reader has %s, this node %s", got, whole)
	}
}
