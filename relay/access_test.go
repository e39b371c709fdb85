package main

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/tunnel/p2p/admission/gate"
)

// Where a relay pins keys, the join secret is for those alone who have a statement that counts, also after later ones.
func TestJoinSecretTakesAStatement(t *testing.T) {
	var keys []crypto.PrivKey
	var ids []peer.ID
	for _, name := range []string{"operator", "a", "b"} {
		key, err := signed.NewKey(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		id, err := peer.IDFromPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		keys, ids = append(keys, key), append(ids, id)
	}
	a := &bySecret{log: slog.New(slog.DiscardHandler)}
	want := func(what string, rulings ...gate.Ruling) {
		t.Helper()
		a.apply(mesh.State{})
		for i, ruling := range rulings {
			if got := a.judge(ids[1+i]); got != ruling {
				t.Errorf("%s: peer %d: ruling %d, want %d", what, i, got, ruling)
			}
		}
	}
	want("no key is pinned", gate.MayWait, gate.MayWait)
	a.book = signed.NewBook(ids[:1])
	want("no statement", gate.LeftToGater, gate.LeftToGater)
	add := func(s signed.Statement, key crypto.PrivKey) {
		t.Helper()
		x, err := signed.Sign(s, key)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = a.book.Add(x.String())
	}
	member := func(name string, id peer.ID, block string) signed.Statement {
		return signed.Statement{Kind: signed.Member, Name: name, ID: id, Epoch: 5, Blocks: []netip.Prefix{netip.MustParsePrefix(block)}}
	}
	add(member("a", ids[1], "10.244.1.0/24"), keys[0])
	add(member("b", ids[2], "10.244.2.0/24"), keys[2]) // its own word
	want("one statement", gate.MayWait, gate.LeftToGater)
	add(signed.Statement{Kind: signed.Ban, Name: "a", Epoch: 6}, keys[0])
	add(member("b", ids[2], "10.244.2.0/24"), keys[0])
	want("a ban by name, and another member", gate.LeftToGater, gate.MayWait)
}
