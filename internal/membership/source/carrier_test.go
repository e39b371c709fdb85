package source

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
)

// told is a source with one State after the other; each is called once what came of one is over.
type told struct {
	None
	states []mesh.State
	each   func()
}

func (s *told) Start(context.Context) (mesh.State, error, error) { return s.states[0], nil, nil }

func (s *told) Watch(_ context.Context, onState func(mesh.State), _ func(error)) {
	for _, x := range s.states[1:] {
		onState(x)
		synctest.Wait()
		s.each()
	}
}

// An agent that believes the API carries what the controllers' key has signed, also after that has changed, and believes what it did. No
// State waits for what is carried.
func TestCarrier(t *testing.T) { synctest.Test(t, testCarrier) }

func testCarrier(t *testing.T) {
	key, _ := keytest.New(t)
	controller, first := keytest.New(t)
	again, second := keytest.New(t)
	_, id := keytest.New(t)
	sign := func(epoch uint64, key crypto.PrivKey) string {
		x, err := signed.Sign(signed.Statement{Kind: signed.Member, Name: "a", ID: id, Epoch: epoch, Blocks: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}, key)
		if err != nil {
			t.Fatal(err)
		}
		return x.String()
	}
	ban, err := signed.Sign(signed.Statement{Kind: signed.Ban, Name: "b", Epoch: 5}, controller)
	if err != nil {
		t.Fatal(err)
	}
	src := &told{states: []mesh.State{
		{Nodes: []mesh.Node{{Name: "x"}}},
		{Signer: first.String(), Signed: []string{sign(5, controller), sign(9, again)}, News: []string{ban.String()}},
		{},
		{Signer: second.String(), Signed: []string{sign(5, controller), sign(9, again)}},
	}}
	dir := t.TempDir()
	c := Carry(src, key, dir, slog.New(slog.DiscardHandler))
	if s, _, err := c.Start(t.Context()); err != nil || len(s.Nodes) != 1 || c.Book() != nil {
		t.Fatalf("%v, %v, %v", s, err, c.Book())
	}
	var own []string
	var books []*signed.Book
	src.each = func() { own, books = append(own, c.Book().Own("a", id)), append(books, c.Book()) }
	c.Watch(t.Context(), func(mesh.State) {
		if len(own) == 0 && c.Book() != nil {
			t.Error("a State has waited")
		}
	}, nil)
	if own[0] == "" || own[0] != own[1] || own[2] == own[0] || own[2] == "" || books[0] != books[1] || books[0].Len() != 2 || books[2].Len() != 1 {
		t.Errorf("%q, %d, %d", own, books[0].Len(), books[2].Len())
	}
	kept := signed.NewBook([]peer.ID{second})
	if load(kept, key, dir, slog.New(slog.DiscardHandler)); kept.Len() != 1 {
		t.Errorf("%d kept", kept.Len())
	}
}
