package controller

import (
	"bytes"
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
	"testing/synctest"
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
	s := &signer{api: &noted{m: &m}, out: make(chan map[string]string, 1), grants: &atomic.Bool{}, log: slog.New(slog.DiscardHandler)}
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
	again := s.leads(t, s.api.(*noted), []api.Object{&api.NodeRecord{Meta: api.Meta{Name: "a"}, Spec: api.NodeRecordSpec{Signed: first}}}, self)
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
	m       *mesh.State
	kept    []byte // in the Secret
	former  bool   // it drops what is signed
	writes  int
	refuses error // why the Secret is not written
}

func (n *noted) Patch(_ context.Context, _, _ string, _ url.Values, in, out any) error {
	n.writes++
	if data, ok := in.(map[string]any)["data"].(map[string][]byte); ok {
		if n.refuses != nil {
			return n.refuses
		}
		n.kept = data[membersEntry]
		return nil
	}
	if status := in.(map[string]any)["status"].(map[string]any); !n.former {
		n.m.Signer, _ = status["signer"].(string)
		n.m.News, _ = status["signed"].([]string)
	}
	out.(*api.PodNetwork).Status = api.PodNetworkStatus{Signer: n.m.Signer, Signed: n.m.News}
	return nil
}

// leads returns the next leader, which reads what the former one has left, and records, if there are any.
func (s *signer) leads(t *testing.T, n *noted, records []api.Object, self peer.ID) *signer {
	t.Helper()
	next := &signer{api: n, out: s.out, grants: s.grants, log: s.log}
	var err error
	if next.kept, err = unpack(n.kept); err != nil {
		t.Fatal(err)
	}
	next.read(records, n.m.News, self)
	return next
}

// What is signed about bans and departures reaches relays that pin the key, and so does the end of a ban and a Node that returns.
func TestSignerTellsWhoIsGone(t *testing.T) {
	key, self := keytest.New(t)
	_, a := keytest.New(t)
	_, b := keytest.New(t)
	node := func(name string, id peer.ID, block string) mesh.Node {
		return mesh.Node{Name: name, PeerID: mesh.PeerID(id.String()), PodCIDRs: []netip.Prefix{netip.MustParsePrefix(block)}}
	}
	nodes := []mesh.Node{node("a", a, "10.244.1.0/24"), node("b", b, "10.244.2.0/24")}
	m := mesh.State{}
	n := &noted{m: &m}
	s := &signer{api: n, out: make(chan map[string]string, 1), grants: &atomic.Bool{}, log: slog.New(slog.DiscardHandler)}
	s.read(nil, nil, self)
	relay, kept := signed.NewBook([]peer.ID{self}), map[string]string{}
	for _, c := range []struct {
		what    string
		nodes   []mesh.Node
		banned  []string
		members string
		exist   map[string]bool
		pruned  bool
	}{
		{what: "both", nodes: nodes, members: "a b"},
		{what: "a MeshNode is missing", nodes: nodes[:1], members: "a b", exist: map[string]bool{"a": true, "b": true}},
		{what: "Nodes are not known yet", nodes: nodes[:1], members: "a b"},
		{what: "a Node is deleted", nodes: nodes[:1], members: "a", exist: map[string]bool{"a": true}},
		{what: "it returns", nodes: nodes, members: "a b"},
		{what: "a Node is deleted, and its record, while none leads", nodes: nodes[:1], members: "a", exist: map[string]bool{"a": true}, pruned: true},
		{what: "another returns", nodes: nodes, members: "a b"},
		{what: "it cannot be signed", nodes: []mesh.Node{nodes[0], {Name: "b", PeerID: nodes[1].PeerID}}, members: "a b"},
		{what: "a ban by name", nodes: nodes, banned: []string{"b"}, members: "a"},
		{what: "a ban by peer ID, too", nodes: nodes, banned: []string{a.String(), "b"}},
		{what: "one ends", nodes: nodes, banned: []string{"b"}, members: "a"},
		{what: "both end", nodes: nodes, members: "a b"},
	} {
		m.Nodes, m.Banned = c.nodes, c.banned
		if c.pruned {
			delete(kept, "b")
			s = s.leads(t, n, nil, self)
		}
		s.nodes = c.exist
		if s.onState(t.Context(), m, key) {
			t.Errorf("%s: it is to be tried again", c.what)
		}
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
		s = s.leads(t, n, records, self) // each time
	}
	// Where more are gone than there is room for, the last ones wait.
	m.Banned, s.nodes = nil, map[string]bool{}
	for i := range newsMost {
		m.Banned = append(m.Banned, fmt.Sprint("c", i))
		x := s.have["a"].Statement
		x.Name = fmt.Sprint("d", i)
		s.have[x.Name] = signed.Signed{Statement: x}
	}
	if _, news, open := s.news(mesh.State{Banned: m.Banned}, nil, key); len(news) != newsMost+newsLeast || !open {
		t.Errorf("%d in the status, open %v", len(news), open)
	}
	if _, _ = tell(t.Context(), s.api, s.log, nil, nil); m.Signer != "" || m.News != nil {
		t.Errorf("nobody signs, and the status has %q and %d", m.Signer, len(m.News))
	}
}

// What the API refuses to keep in the Secret rests; after any other failure it is written again soon.
func TestSecretIsWrittenAgain(t *testing.T) {
	key, self := keytest.New(t)
	_, a := keytest.New(t)
	secrets := schema.GroupResource{Resource: "secrets"}
	for what, c := range map[string]struct {
		err  error
		rest time.Duration
	}{
		"too large":    {apierrors.NewRequestEntityTooLargeError("3 MB"), keepRest},
		"invalid":      {apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "edgemesh", nil), keepRest},
		"away":         {errors.New("connection refused"), 0},
		"forbidden":    {apierrors.NewForbidden(secrets, "edgemesh", nil), 0},
		"out of turn":  {apierrors.NewTooManyRequests("later", 1), 0},
		"another time": {apierrors.NewConflict(secrets, "edgemesh", nil), 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := mesh.State{Nodes: []mesh.Node{{Name: "a", PeerID: mesh.PeerID(a.String()), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}}}
			n := &noted{m: &m, refuses: c.err}
			s := &signer{api: n, out: make(chan map[string]string, 1), grants: &atomic.Bool{}, log: slog.New(slog.DiscardHandler)}
			s.read(nil, nil, self)
			kept := func(want bool) {
				t.Helper()
				if open := s.onState(t.Context(), m, key); open == want || (n.kept != nil) != want {
					t.Errorf("%s: kept %v, to be tried again: %v", what, n.kept != nil, open)
				}
			}
			kept(false)
			n.refuses = nil
			if time.Sleep(lookAgain); c.rest > 0 {
				kept(false)
				time.Sleep(c.rest)
			}
			kept(true)
		})
	}
}

// Where the API drops what is signed, because its CRDs are of an earlier release, the log says what to run, and nothing is written again.
func TestFormerCRDs(t *testing.T) {
	key, self := keytest.New(t)
	_, a := keytest.New(t)
	var log bytes.Buffer
	m := mesh.State{Nodes: []mesh.Node{{Name: "a", PeerID: mesh.PeerID(a.String()), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}}}
	n := &noted{m: &m, former: true}
	s := &signer{api: n, out: make(chan map[string]string, 1), grants: &atomic.Bool{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	s.read(nil, nil, self)
	s.onState(t.Context(), m, key)
	writes := n.writes
	s.onState(t.Context(), m, key)
	if n.writes != writes || strings.Count(log.String(), "kubectl apply -f manifests/edgemesh/crds") != 1 {
		t.Errorf("%d writes, then %d:\n%s", writes, n.writes, &log)
	}
	node, made := &api.Node{Meta: api.Meta{Name: "a", UID: "1"}}, &api.NodeRecord{Spec: api.NodeRecordSpec{NodeUID: "1"}}
	r := &records{api: pruning{}, statement: <-s.out, grants: s.grants, log: s.log}
	if x := r.agree(t.Context(), "a", node, made); x.err != nil || r.spec(node, x.made).Signed != "" || !r.dropped.lately() {
		t.Errorf("%+v: %q is written again", x, r.spec(node, x.made).Signed)
	}
}

// pruning is an API that keeps nothing.
type pruning struct{ cluster }

func (pruning) Patch(_ context.Context, _, _ string, _ url.Values, _, out any) error {
	out.(*api.NodeRecord).Spec.NodeUID = "1"
	return nil
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
