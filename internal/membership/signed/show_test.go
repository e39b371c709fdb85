package signed

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/peer"
)

// What a member shows counts once for each thing that a pinned key or its delegate says, and as before after a restart, whatever the clock says.
func TestShow(t *testing.T) {
	op, del, a, b := newSigner(t), newSigner(t), newSigner(t), newSigner(t)
	path := filepath.Join(t.TempDir(), "statements")
	synctest.Test(t, func(t *testing.T) { // whose clock begins in 2000
		now := uint64(written + 100)
		gone := member("left", b.id, now, "10.244.3.0/24")
		gone.Expires = gone.Epoch
		book := NewBook([]peer.ID{op.id})
		if err := book.Load(path, []byte("secret")); err != nil {
			t.Fatal(err)
		}
		if _, err := book.Add(op.grant(t, del.id), op.sign(t, gone), op.sign(t, Statement{Kind: Ban, Name: "bad", Epoch: now}),
			op.sign(t, member("other", b.id, now, "10.244.4.0/24"))); err != nil {
			t.Fatal(err)
		}
		expired := member("expired", a.id, 6, "10.244.5.0/24")
		expired.Expires = now - 1
		shown := []struct {
			what, text, says string
			added            int
		}{
			{"the operator's", op.sign(t, member("a", a.id, 5, "10.244.1.0/24")), "", 1},
			{"again", op.sign(t, member("a", a.id, 5, "10.244.1.0/24")), "", 0},
			{"a delegate's", del.sign(t, member("d", a.id, 5, "10.244.2.0/24")), "", 1},
			{"a delegate's, elsewhere", del.sign(t, member("e", a.id, 5, "192.168.2.0/24")), "outside", 0},
			{"a stranger's", a.sign(t, member("a", a.id, 5, "10.244.1.0/24")), "not in signers", 0},
			{"another peer's", op.sign(t, member("other", b.id, now, "10.244.4.0/24")), "another peer", 0},
			{"older", op.sign(t, member("other", a.id, now-1, "10.244.4.0/24")), "older", 0},
			{"gone", op.sign(t, member("left", a.id, 5, "10.244.3.0/24")), "older", 0},
			{"expired", op.sign(t, expired), "expired", 1},
			{"a ban", op.sign(t, Statement{Kind: Ban, ID: a.id, Epoch: 5}), "not a signed statement", 0},
		}
		for _, x := range shown {
			raw, err := decode(x.text)
			if err != nil {
				t.Fatal(err)
			}
			had := book.Len()
			_, err = book.Show(raw, a.id)
			if added := book.Len() - had; x.says == "" && (err != nil || added != x.added) || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
				t.Errorf("%s: %v; want %q", x.what, err, x.says)
			}
		}
		bad, _ := decode(op.sign(t, member("bad", del.id, 5, "10.244.6.0/24")))
		if _, err := book.Show(bad, del.id); err == nil || !strings.Contains(err.Error(), "ban") {
			t.Errorf("banned by name: %v", err)
		}
		if err := book.Save(); err != nil {
			t.Fatal(err)
		}
		again := NewBook([]peer.ID{op.id})
		if err := again.Load(path, []byte("secret")); err != nil || again.Digest() != book.Digest() {
			t.Fatalf("%v: other statements than before", err)
		}
		for _, x := range shown[:3] {
			raw, _ := decode(x.text)
			if _, err := again.Show(raw, a.id); err != nil || again.Digest() != book.Digest() {
				t.Errorf("%s, after a restart: %v", x.what, err)
			}
		}
	})
}
