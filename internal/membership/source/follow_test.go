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
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/membership/snapshot"
)

// silent is a source that has a membership at the start, and no news.
type silent struct {
	Source
	state mesh.State
}

func (s silent) Start(context.Context) (mesh.State, error, error)           { return s.state, nil, nil }
func (silent) Watch(ctx context.Context, _ func(mesh.State), _ func(error)) { <-ctx.Done() }
func (silent) String() string                                               { return "silent" }

// Members of before whom nobody has signed stay until the key has signed for a day, and ten minutes more: one exchange with a member
// that has few statements, or old ones, ends none of them.
func TestFormerMembersStayAWhile(t *testing.T) {
	key, self := keytest.New(t)
	dir, block := t.TempDir(), netip.MustParsePrefix("10.244.1.0/24")
	before := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Encryption: mesh.EncryptionAuto}
	_, a := keytest.New(t)
	before.Nodes = []mesh.Node{{Name: "a", PeerID: mesh.PeerID(a.String()), PodCIDRs: []netip.Prefix{block}}}
	if err := snapshot.Save(dir, before); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		book := signed.NewBook([]peer.ID{self})
		src := Pin(None{}, book, config.Membership{}, key, dir, "", slog.New(slog.DiscardHandler))
		if _, _, err := src.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		var members []mesh.Node
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go src.Watch(ctx, func(s mesh.State) { members = s.Admitted().Nodes }, func(err error) { t.Error(err) })
		const day, patience = 24 * 3600, 10 * time.Minute
		for _, x := range []struct {
			name  string
			epoch uint64
			wait  time.Duration
			want  int
		}{
			{"b", 1_795_700_000, 2 * patience, 2},
			{"c", 1_795_700_000 + day + 1, patience - time.Minute, 3}, // the key has signed for a day
			{"b", 1_795_700_000 + day, 2 * patience, 3},               // it has not
			{"c", 1_795_700_000 + 3*day, patience - time.Minute, 3},
			{"d", 1_795_700_000 + 3*day, 3 * time.Minute, 3}, // without a
		} {
			_, id := keytest.New(t)
			s, err := signed.Sign(signed.Statement{Kind: signed.Member, Name: x.name, ID: id, Epoch: x.epoch, Blocks: []netip.Prefix{block}}, key)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := book.Add(s.String()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(x.wait)
			if synctest.Wait(); len(members) != x.want {
				t.Errorf("%s of %d: %d members, want %d", x.name, x.epoch, len(members), x.want)
			}
		}
	})
}

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
