package book

import (
	"context"
	"crypto/rand"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/endpoint"
)

func newID(t *testing.T) peer.ID {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// write has b write what has changed, as at the end of the process.
func write(t *testing.T, b *Book) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.Run(ctx, func(err error) { t.Fatal(err) })
}

// A damaged file costs what it held, not the start; what is well-formed is taken.
func TestBookDamaged(t *testing.T) {
	id := newID(t)
	path := filepath.Join(t.TempDir(), "addresses.json")
	for text, want := range map[string]int{
		"": 0, "{": 0, "null": 0, `{"x": ["/ip4/192.168.1.2/tcp/4001"]}`: 0,
		`{"` + id.String() + `": ["/ip4/192.168.1.2/tcp/4001", "nonsense", "/ip4/192.168.1.2/tcp/0", "/ip4/192.168.1.2/udp/4001/quic-v1"]}`: 2,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := Open(path)
		if wrong := text == "" || text == "{"; (err != nil) != wrong {
			t.Errorf("%q: error %v", text, err)
		}
		if got := b.Known(id); len(got) != want {
			t.Errorf("%q: %v, want %d", text, got, want)
		}
		eps := []endpoint.Endpoint{{Addr: netip.MustParseAddrPort("192.168.1.3:4001")}}
		b.Note(id, eps, func() bool { return true })
		write(t, b)
		if b, err = Open(path); err != nil || !slices.Equal(b.Known(id), eps) {
			t.Errorf("after %q: %v, %v", text, b.Known(id), err)
		}
		removed := newID(t)
		if b.Note(removed, eps, func() bool { return false }); b.Known(removed) != nil {
			t.Error("a removed member is remembered")
		}
	}
}
