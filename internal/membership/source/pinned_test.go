package source

import (
	"context"
	"crypto/rand"
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
