package source

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
)

// silent is a source that has a membership at the start, and no news.
type silent struct {
	Source
	state mesh.State
}

func (s silent) Start(context.Context) (mesh.State, error, error)           { return s.state, nil, nil }
func (silent) Watch(ctx context.Context, _ func(mesh.State), _ func(error)) { <-ctx.Done() }
func (silent) String() string                                               { return "silent" }

// A statement that comes between the start and the watch counts without another one.
func TestNothingIsMissedBeforeTheWatch(t *testing.T) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		book := signed.NewBook([]peer.ID{id})
		src := Pin(silent{state: mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}, book, config.Membership{}, key, dir, "", slog.New(slog.DiscardHandler))
		if s, _, err := src.Start(t.Context()); err != nil || s.Bans("a", "") {
			t.Fatal(s, err)
		}
		ban, err := signed.Sign(signed.Statement{Kind: signed.Ban, Name: "a", Epoch: 5}, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := book.Add(ban.String()); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
		defer end()
		banned := 0
		src.Watch(ctx, func(s mesh.State) {
			if s.Bans("a", "") {
				banned++
			}
		}, func(err error) { t.Error(err) })
		if banned != 1 {
			t.Errorf("handed out %d times", banned)
		}
	})
}
