package source

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/membership/snapshot"
)

// A file's membership counts as far as it is signed; statements beside it count within 2 s, as those that others pass on, and
// after a restart without both files.
func TestPinned(t *testing.T) {
	dir, stateDir := t.TempDir(), t.TempDir()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "cluster.yaml")
	text := "podCIDRs: [10.244.0.0/16]\nnodes:\n- {name: a, peerID: " + id.String() + ", podCIDRs: [10.244.1.0/24]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sign := func(s signed.Statement) string {
		t.Helper()
		x, err := signed.Sign(s, key)
		if err != nil {
			t.Fatal(err)
		}
		return x.String()
	}
	book := signed.NewBook([]peer.ID{id})
	m := config.Membership{File: path}
	src, err := New(m, kube.Config{StateDir: stateDir})
	if err != nil {
		t.Fatal(err)
	}
	src = Pin(src, book, m, key, stateDir, "", slog.New(slog.DiscardHandler))
	s, warning, err := src.Start(t.Context())
	if len(s.Nodes) > 0 || warning != nil || err != nil {
		t.Fatalf("%v, %v, %v", s.Nodes, warning, err)
	}
	states := make(chan mesh.State, 16)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		src.Watch(ctx, func(s mesh.State) { states <- s }, func(err error) { t.Error(err) })
	}()
	want := func(what string, n int) {
		t.Helper()
		for late := time.After(5 * time.Second); ; {
			select {
			case s := <-states:
				if len(s.Admitted().Nodes) == n {
					return
				}
			case <-late:
				t.Fatalf("%s: not %d members", what, n)
			}
		}
	}
	member := sign(signed.Statement{Kind: signed.Member, Name: "a", ID: id, Epoch: 5, Blocks: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}})
	if err := os.WriteFile(path+SignedSuffix, []byte("# comment\n\n"+member+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("statements beside the file", 1)
	if _, err := book.Add(sign(signed.Statement{Kind: signed.Ban, Name: "a", Epoch: 6})); err != nil {
		t.Fatal(err)
	}
	want("a ban from a member", 0)
	end()
	<-ended
	if err := os.Remove(path + SignedSuffix); err != nil {
		t.Fatal(err)
	}
	again := signed.NewBook([]peer.ID{id})
	src, err = New(m, kube.Config{StateDir: stateDir})
	if err != nil {
		t.Fatal(err)
	}
	src = Pin(src, again, m, key, stateDir, "", slog.New(slog.DiscardHandler))
	if s, _, err := src.Start(t.Context()); err != nil || again.Len() != 2 || len(s.Admitted().Nodes) != 0 || !s.Bans("a", "") {
		t.Errorf("%v, %v, %d statements", s, err, again.Len())
	}
}

// A node that a statement bans, or whose own key is newer than its statement, starts as its source has it, for only a running one
// learns of what lifts that; the snapshot has what the source says, which is judged again.
func TestPinnedStartsAndKeepsWhatTheSourceSays(t *testing.T) {
	dir, stateDir := t.TempDir(), t.TempDir()
	operator, _, err1 := crypto.GenerateEd25519Key(rand.Reader)
	key, _, err2 := crypto.GenerateEd25519Key(rand.Reader)
	id, err3 := peer.IDFromPrivateKey(operator)
	self, err4 := peer.IDFromPrivateKey(key)
	path, block := filepath.Join(dir, "cluster.yaml"), netip.MustParsePrefix("10.244.1.0/24")
	err5 := os.WriteFile(path, []byte("podCIDRs: [10.244.0.0/16]\nnodes:\n- {name: a, peerID: "+self.String()+", podCIDRs: [10.244.1.0/24]}\n"+
		"- {name: b, peerID: "+id.String()+", podCIDRs: [10.244.2.0/24]}\n"), 0o600)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	book, m := signed.NewBook([]peer.ID{id}), config.Membership{File: path}
	src, err := New(m, kube.Config{StateDir: stateDir})
	if err != nil {
		t.Fatal(err)
	}
	src = Pin(src, book, m, key, stateDir, "a", slog.New(slog.DiscardHandler))
	for i, x := range []signed.Statement{
		{Kind: signed.Ban, Name: "a", Epoch: 6},
		{Kind: signed.Ban, ID: self, Epoch: 6},
		{Kind: signed.Member, Name: "a", ID: id, Epoch: 5, Blocks: []netip.Prefix{block}}, // of its key before
	} {
		s, err := signed.Sign(x, operator)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := book.Add(s.String()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		state, _, err := src.Start(t.Context())
		if plan, failed := mesh.NewPlan(state, "a"); err != nil || failed != nil || plan.Self.PeerID != mesh.PeerID(self.String()) || state.Bans("a", plan.Self.PeerID) {
			t.Errorf("%d: %+v, %v, %v", i, state, err, failed)
		}
		if err := snapshot.Save(stateDir, state); err != nil {
			t.Fatal(err)
		}
		if kept, err := snapshot.Load(stateDir); err != nil || len(kept.Nodes) != 2 || len(kept.Banned) != 0 {
			t.Errorf("%d: the snapshot has %+v, %v", i, kept, err)
		}
	}
}
