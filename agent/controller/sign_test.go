package controller

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

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
	s := &signer{out: make(chan map[string]string, 1), log: slog.New(slog.DiscardHandler)}
	forged, err := signed.Sign(signed.Statement{Kind: signed.Member, Name: "a", ID: b, Epoch: 1 << 40, Blocks: []netip.Prefix{block}}, forger)
	if err != nil {
		t.Fatal(err)
	}
	s.read([]api.Object{&api.NodeRecord{Meta: api.Meta{Name: "a"}, Spec: api.NodeRecordSpec{Signed: forged.String()}}}, self)
	round := func() string { s.onState(context.Background(), m, key); return (<-s.out)["a"] }
	first := round()
	if len(s.have) != 1 || first == "" || round() != first {
		t.Fatalf("signed %v", s.have)
	}
	again := &signer{out: s.out, log: s.log} // the next leader
	again.read([]api.Object{&api.NodeRecord{Meta: api.Meta{Name: "a"}, Spec: api.NodeRecordSpec{Signed: first}}}, self)
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
	if n, err := book.Add(round()); n != 1 || err != nil {
		t.Errorf("a changed block: %d, %v", n, err)
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
	r := &records{log: slog.New(slog.DiscardHandler)}
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
}
