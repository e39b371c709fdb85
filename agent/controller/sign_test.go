package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
)

// A controller signs each admitted member once, again when it changes, and later than before; agents that pin the key which has
// delegated to it believe that, from the record and beside the PodNetwork's own statements, and nothing that another one has signed.
func TestSigner(t *testing.T) {
	operator, pinned := keytest.New(t)
	key, self := keytest.New(t)
	forger, _ := keytest.New(t)
	_, a := keytest.New(t)
	_, b := keytest.New(t)
	block := netip.MustParsePrefix("10.244.1.0/24")
	m := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Encryption: mesh.EncryptionAuto, Banned: []string{"b"},
		Nodes: []mesh.Node{{Name: "a", PeerID: mesh.PeerID(a.String()), PodCIDRs: []netip.Prefix{block}},
			{Name: "b", PeerID: mesh.PeerID(b.String()), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}}}}
	s := &signer{api: noted{m: &m}, out: make(chan map[string]string, 1), grants: &atomic.Bool{}, log: slog.New(slog.DiscardHandler)}
	forged, err := signed.Sign(signed.Statement{Kind: signed.Member, Name: "a", ID: b, Epoch: 1 << 40, Blocks: []netip.Prefix{block}}, forger)
	if err != nil {
		t.Fatal(err)
	}
	s.read([]api.Object{&api.NodeRecord{Meta: api.Meta{Name: "a"}, Spec: api.NodeRecordSpec{Signed: forged.String()}}}, nil, self)
	round := func() string { s.onState(context.Background(), m, key); return (<-s.out)["a"] }
	first := round()
	if len(s.have) != 1 || first == "" || round() != first || m.Signer != self.String() {
		t.Fatalf("signed %v", s.have)
	}
	again := &signer{api: s.api, out: s.out, grants: s.grants, log: s.log} // the next leader
	again.read([]api.Object{&api.NodeRecord{Meta: api.Meta{Name: "a"}, Spec: api.NodeRecordSpec{Signed: first}}}, m.News, self)
	if s = again; round() != first {
		t.Error("another leader signs again what is signed")
	}
	book := signed.NewBook([]peer.ID{pinned})
	grant, err := signed.Sign(signed.Statement{Kind: signed.Delegation, ID: self, Epoch: 5, Expires: 1 << 40, Blocks: m.PodCIDRs}, operator)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := book.Add(first, grant.String(), forged.String()); n != 2 {
		t.Errorf("%d count", n)
	}
	if out, bad := book.Apply(m, ""); len(out.Admitted().Nodes) != 1 || out.Nodes[0].PeerID != mesh.PeerID(a.String()) {
		t.Errorf("%v, %v", out.Nodes, bad)
	}
	m.Nodes[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}
	if s.grants.Load() {
		t.Error("nobody has delegated")
	}
	if n, err := book.Add(round()); n != 1 || err != nil {
		t.Errorf("a changed block: %d, %v", n, err)
	}
}

// noted is an API whose PodNetwork's status is m's.
type noted struct {
	cluster
	m     *mesh.State
	says  error      // instead of b's Node
	since *time.Time // it is being deleted
}

func (n noted) Get(_ context.Context, _ string, out any) error {
	out.(*api.Node).Meta.DeletionTimestamp = n.since
	return n.says
}

func (n noted) Patch(_ context.Context, _, _ string, _ url.Values, in, _ any) error {
	status, _ := in.(map[string]any)["status"].(map[string]any)
	n.m.Signer, _ = status["signer"].(string)
	n.m.News, _ = status["signed"].([]string)
	return nil
}

// What is signed about bans and departures reaches relays that pin the key, and so does the end of a ban and a Node that returns.
func TestSignerTellsWhoIsGone(t *testing.T) {
	key, self := keytest.New(t)
	_, a := keytest.New(t)
	_, b := keytest.New(t)
	node := func(name string, id peer.ID, block string) mesh.Node {
		return mesh.Node{Name: name, PeerID: mesh.PeerID(id.String()), PodCIDRs: []netip.Prefix{netip.MustParsePrefix(block)}}
	}
	gone := apierrors.NewNotFound(schema.GroupResource{}, "b")
	nodes := []mesh.Node{node("a", a, "10.244.1.0/24"), node("b", b, "10.244.2.0/24")}
	m := mesh.State{}
	s := &signer{api: noted{m: &m}, out: make(chan map[string]string, 1), grants: &atomic.Bool{}, log: slog.New(slog.DiscardHandler)}
	s.read(nil, nil, self)
	relay, kept := signed.NewBook([]peer.ID{self}), map[string]string{}
	for _, c := range []struct {
		what    string
		nodes   []mesh.Node
		banned  []string
		members string
		says    error
		since   *time.Time
		open    bool
	}{
		{what: "both", nodes: nodes, members: "a b"},
		{what: "a MeshNode is missing", nodes: nodes[:1], members: "a b", open: true},
		{what: "a Node cannot be read", nodes: nodes[:1], members: "a b", says: errors.New("no answer"), open: true},
		{what: "a Node is deleted", nodes: nodes[:1], members: "a", says: gone},
		{what: "it returns", nodes: nodes, members: "a b"},
		{what: "a Node waits for a finalizer", nodes: nodes[:1], members: "a", since: &time.Time{}},
		{what: "another returns", nodes: nodes, members: "a b"},
		{what: "it cannot be signed", nodes: []mesh.Node{nodes[0], {Name: "b", PeerID: nodes[1].PeerID}}, members: "a b"},
		{what: "a ban by name", nodes: nodes, banned: []string{"b"}, members: "a"},
		{what: "a ban by peer ID, too", nodes: nodes, banned: []string{a.String(), "b"}},
		{what: "one ends", nodes: nodes, banned: []string{"b"}, members: "a"},
		{what: "both end", nodes: nodes, members: "a b"},
	} {
		m.Nodes, m.Banned = c.nodes, c.banned
		s.api = noted{m: &m, says: c.says, since: c.since}
		if open := s.onState(t.Context(), m, key); open != c.open {
			t.Errorf("%s: open %v", c.what, open)
		}
		next := &signer{api: s.api, out: s.out, grants: s.grants, log: s.log} // each time another leader
		var records []api.Object
		texts := slices.Clone(m.News)
		for name, text := range <-s.out {
			texts = append(texts, text)
			kept[name] = text // as records do
		}
		for name, text := range kept {
			records = append(records, &api.NodeRecord{Meta: api.Meta{Name: name}, Spec: api.NodeRecordSpec{Signed: text}})
		}
		if _, err := relay.Add(texts...); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		var names []string
		out, _ := relay.Apply(mesh.State{Nodes: relay.Members()}, "")
		for _, n := range out.Admitted().Nodes {
			names = append(names, n.Name)
		}
		if got := strings.Join(names, " "); got != c.members {
			t.Errorf("%s: members %q, want %q", c.what, got, c.members)
		}
		next.read(records, m.News, self)
		s = next
	}
	// Where more are gone than there is room for, the last ones wait.
	s.api, s.bans = noted{m: &m, says: gone}, map[string]signed.Signed{}
	m.Banned = nil
	for i := range newsMost - 1 {
		m.Banned = append(m.Banned, fmt.Sprint("c", i))
	}
	if _, news, open := s.news(t.Context(), mesh.State{Banned: m.Banned}, nil, key); len(news) != newsMost || !open {
		t.Errorf("%d in the status, open %v", len(news), open)
	}
	if tell(t.Context(), s.api, s.log, nil, nil); m.Signer != "" || m.News != nil {
		t.Errorf("nobody signs, and the status has %q and %d", m.Signer, len(m.News))
	}
}

// A record keeps its statement until the signer has spoken, and the peer ID in it as long as it is of that Node: whoever writes
// MeshNodes replaces no member. Another Node of that name gets another statement, and other blocks do.
func TestRecordsKeepStatements(t *testing.T) {
	key, _ := keytest.New(t)
	next, _ := keytest.New(t)
	_, a := keytest.New(t)
	_, b := keytest.New(t)
	sign := func(id peer.ID, block string, key crypto.PrivKey) string {
		t.Helper()
		x, err := signed.Sign(signed.Statement{Kind: signed.Member, Name: "a", ID: id, Epoch: 5, Blocks: []netip.Prefix{netip.MustParsePrefix(block)}}, key)
		if err != nil {
			t.Fatal(err)
		}
		return x.String()
	}
	old := sign(a, "10.244.1.0/24", key)
	node := &api.Node{Meta: api.Meta{Name: "a", UID: "1"}}
	made := &api.NodeRecord{Spec: api.NodeRecordSpec{NodeUID: "1", Signed: old}}
	r := &records{grants: &atomic.Bool{}, log: slog.New(slog.DiscardHandler)}
	r.grants.Store(true)
	if got := r.spec(node, made).Signed; got != old {
		t.Errorf("%q before the signer has spoken", got)
	}
	for what, c := range map[string]struct {
		says, uid string
		keeps     bool
	}{
		"another block":                  {sign(a, "10.244.2.0/24", key), "1", false},
		"another key":                    {sign(b, "10.244.1.0/24", key), "1", true},
		"another key and block":          {sign(b, "10.244.2.0/24", key), "1", true},
		"no MeshNode":                    {"", "1", true},
		"another key, of another Node":   {sign(b, "10.244.1.0/24", key), "2", false},
		"no MeshNode, of another Node":   {"", "2", false},
		"another key, by another signer": {sign(b, "10.244.1.0/24", next), "1", false},
	} {
		r.statement, node.Meta.UID = map[string]string{"a": c.says}, c.uid
		want := c.says
		if c.keeps {
			want = old
		}
		got := r.spec(node, made)
		if got.Signed != want || !c.keeps && change(made.Spec, got)["signed"] != want {
			t.Errorf("%s: %+v", what, got)
		}
	}
	// Where no operator has delegated, the API says who is a member, also by a key that a node has made again.
	r.grants.Store(false)
	r.statement, node.Meta.UID = map[string]string{"a": sign(b, "10.244.1.0/24", key)}, "1"
	if got := r.spec(node, made).Signed; got != r.statement["a"] {
		t.Errorf("another key: %q", got)
	}
}
