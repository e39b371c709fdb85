package signed

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	mrand "math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/record"
	"golang.org/x/sys/unix"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/tcptest"
)

// signer is a key and its public form.
type signer struct {
	key crypto.PrivKey
	id  peer.ID
}

func newSigner(t testing.TB) signer {
	t.Helper()
	key, pub, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return signer{key, id}
}

func (s signer) sign(t testing.TB, st Statement) string {
	t.Helper()
	out, err := Sign(st, s.key)
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func blocks(list ...string) (out []netip.Prefix) {
	for _, text := range list {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func member(name string, id peer.ID, epoch uint64, list ...string) Statement {
	return Statement{Kind: Member, Name: name, ID: id, Epoch: epoch, Blocks: blocks(list...)}
}

func node(name string, id peer.ID, list ...string) mesh.Node {
	return mesh.Node{Name: name, PeerID: mesh.PeerID(id.String()), PodCIDRs: blocks(list...)}
}

func state(nodes ...mesh.Node) mesh.State {
	return mesh.State{PodCIDRs: blocks("10.244.0.0/16"), Encryption: mesh.EncryptionAuto, Nodes: nodes}
}

// admitted are the names and blocks of whom b admits of s, and the problems that it names.
func admitted(b *Book, s mesh.State, self string) (string, string) {
	out, bad := b.Apply(s, self)
	var names, problems []string
	for _, n := range out.Admitted().Nodes {
		names = append(names, fmt.Sprintf("%s=%v", n.Name, n.PodCIDRs[0]))
	}
	for _, p := range bad {
		problems = append(problems, p.Error())
	}
	return strings.Join(names, " "), strings.Join(problems, "\n")
}

func wantAdmitted(t *testing.T, b *Book, s mesh.State, want string) string {
	t.Helper()
	got, problems := admitted(b, s, "")
	if got != want {
		t.Errorf("admitted %q, want %q\n%s", got, want, problems)
	}
	return problems
}

func TestOnlyStatementsCount(t *testing.T) {
	op, forger := newSigner(t), newSigner(t)
	a, other := newSigner(t).id, newSigner(t).id
	b := NewBook([]peer.ID{op.id})
	forged := forger.sign(t, member("a", other, 99, "10.244.1.0/24"))
	if n, err := b.Add(op.sign(t, member("a", a, 5, "10.244.1.0/24")), forged); n != 1 || !errors.Is(err, ErrSigner) || !strings.Contains(err.Error(), forger.id.String()) {
		t.Fatalf("%d taken, %v", n, err)
	}
	problems := wantAdmitted(t, b, state(node("a", other, "10.244.9.0/24"), node("b", other, "10.244.2.0/24")), "a=10.244.1.0/24")
	if !strings.Contains(problems, "node a: the source says peer ID "+other.String()) || !strings.Contains(problems, "node b: no signed statement") {
		t.Error(problems)
	}
	// A source can leave out, and this node stays without a statement.
	wantAdmitted(t, b, state(), "")
	if got, _ := admitted(b, state(node("b", other, "10.244.2.0/24")), "b"); got != "b=10.244.2.0/24" {
		t.Error(got)
	}
}

// A statement that names a pinned key, and is signed by another one, is nobody's.
func TestSignatureCounts(t *testing.T) {
	op, forger := newSigner(t), newSigner(t)
	for name, signed := range map[string]bool{"the control": true, "another key's signature": false} {
		x := member("a", newSigner(t).id, 5, "10.244.1.0/24")
		e, err := record.Seal(&x, map[bool]signer{true: op, false: forger}[signed].key)
		if err != nil {
			t.Fatal(err)
		}
		e.PublicKey = op.key.GetPublic()
		raw, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		n, err := NewBook([]peer.ID{op.id}).Add(base64.RawURLEncoding.EncodeToString(raw))
		if signed != (n == 1) || signed != (err == nil) || !signed && !strings.Contains(err.Error(), "signed in the name of "+op.id.String()) {
			t.Errorf("%s: %d taken, %v", name, n, err)
		}
	}
}

func TestNewerCountsAndReplaysDoNot(t *testing.T) {
	op := newSigner(t)
	old, now := newSigner(t).id, newSigner(t).id
	b := NewBook([]peer.ID{op.id})
	first, second := op.sign(t, member("a", old, 5, "10.244.1.0/24")), op.sign(t, member("a", now, 6, "10.244.2.0/24"))
	for _, text := range []string{second, first, second, first} {
		if _, err := b.Add(text); err != nil {
			t.Fatal(err)
		}
	}
	wantAdmitted(t, b, state(node("a", old, "10.244.1.0/24")), "a=10.244.2.0/24")
}

func TestBans(t *testing.T) {
	op, del := newSigner(t), newSigner(t)
	a, again := newSigner(t).id, newSigner(t).id
	s := state(node("a", a, "10.244.1.0/24"))
	for _, ban := range []Statement{{Kind: Ban, Name: "a", Epoch: 7}, {Kind: Ban, ID: a, Epoch: 7}} {
		b := NewBook([]peer.ID{op.id})
		add := func(texts ...string) error { t.Helper(); _, err := b.Add(texts...); return err }
		if err := add(op.sign(t, member("a", a, 5, "10.244.1.0/24")), op.sign(t, ban),
			op.sign(t, Statement{Kind: Delegation, ID: del.id, Epoch: 5, Expires: 100, Blocks: blocks("10.244.0.0/16")})); err != nil {
			t.Fatal(err)
		}
		wantAdmitted(t, b, s, "")
		if out, _ := b.Apply(s, ""); !slices.Contains(out.Banned, ban.Who()) || !slices.Contains(out.Banned, a.String()) {
			t.Errorf("banned %v", out.Banned)
		}
		// A delegate lifts no ban, however new its statement is, nor does a replay.
		if err := add(del.sign(t, member("a", a, 50, "10.244.1.0/24")), op.sign(t, member("a", a, 6, "10.244.1.0/24"))); err != nil {
			t.Fatal(err)
		}
		wantAdmitted(t, b, s, "")
		if out, _ := b.Apply(s, ""); !slices.Contains(out.Banned, a.String()) {
			t.Errorf("after a delegate's statement banned %v", out.Banned)
		}
		if err := add(op.sign(t, member("a", a, 8, "10.244.1.0/24"))); err != nil {
			t.Fatal(err)
		}
		wantAdmitted(t, b, s, "a=10.244.1.0/24")
	}
	// A ban by name holds for whoever makes a new key.
	b := NewBook([]peer.ID{op.id})
	if _, err := b.Add(op.sign(t, Statement{Kind: Ban, Name: "a", Epoch: 7}), op.sign(t, member("a", again, 6, "10.244.1.0/24"))); err != nil {
		t.Fatal(err)
	}
	wantAdmitted(t, b, state(node("a", again, "10.244.1.0/24")), "")
}

func TestDelegation(t *testing.T) {
	op, del := newSigner(t), newSigner(t)
	a := newSigner(t).id
	grant := func(epoch, until uint64, list ...string) string {
		return op.sign(t, Statement{Kind: Delegation, ID: del.id, Epoch: epoch, Expires: until, Blocks: blocks(list...)})
	}
	s := state(node("a", a, "10.244.1.0/24"))
	own := del.sign(t, member("a", a, 20, "10.244.1.0/24"))
	b := NewBook([]peer.ID{op.id})
	if _, err := b.Add(own); !errors.Is(err, ErrSigner) {
		t.Errorf("without a delegation: %v", err)
	}
	// In one go, in any order.
	if n, err := b.Add(own, grant(10, 100, "10.244.0.0/20")); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	wantAdmitted(t, b, s, "a=10.244.1.0/24")
	for text, want := range map[string]error{
		del.sign(t, member("b", a, 20, "10.244.200.0/24")):                                                             ErrScope,
		del.sign(t, member("b", a, 100, "10.244.2.0/24")):                                                              ErrScope,
		del.sign(t, Statement{Kind: Ban, Name: "a", Epoch: 99}):                                                        ErrSigner,
		del.sign(t, Statement{Kind: Delegation, ID: a, Epoch: 99, Expires: 200, Blocks: blocks("10.0.0.0/8")}):         ErrSigner,
		del.sign(t, Statement{Kind: Delegation, ID: del.id, Epoch: 99, Expires: 1 << 40, Blocks: blocks("0.0.0.0/0")}): ErrSigner,
	} {
		if _, err := b.Add(text); !errors.Is(err, want) || !strings.Contains(err.Error(), del.id.String()) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	// What a pinned key has signed is not displaced, however old it is.
	if _, err := b.Add(op.sign(t, member("a", a, 11, "10.244.3.0/24")), del.sign(t, member("a", a, 50, "10.244.1.0/24"))); err != nil {
		t.Fatal(err)
	}
	wantAdmitted(t, b, s, "a=10.244.3.0/24")
	// Narrowed, expired by proof of time, banned: what the delegate has signed is gone.
	for name, text := range map[string]string{
		"narrowed": grant(12, 100, "10.244.8.0/24"),
		"expired":  op.sign(t, member("z", op.id, 100, "10.244.9.0/24")),
		"banned":   op.sign(t, Statement{Kind: Ban, ID: del.id, Epoch: 13}),
	} {
		b := NewBook([]peer.ID{op.id})
		if _, err := b.Add(grant(10, 100, "10.244.0.0/20"), own); err != nil {
			t.Fatal(err)
		}
		wantAdmitted(t, b, s, "a=10.244.1.0/24")
		if _, err := b.Add(text); err != nil {
			t.Fatal(err)
		}
		if got, _ := admitted(b, s, ""); got != "" {
			t.Errorf("%s: %s is admitted", name, got)
		}
	}
}

// Only what a pinned key has signed proves time.
func TestExpiry(t *testing.T) {
	op, del := newSigner(t), newSigner(t)
	a := newSigner(t).id
	x := member("a", a, 10, "10.244.1.0/24")
	x.Expires = 50
	b := NewBook([]peer.ID{op.id})
	if _, err := b.Add(op.sign(t, x), op.sign(t, Statement{Kind: Delegation, ID: del.id, Epoch: 11, Expires: 1 << 40, Blocks: blocks("10.244.0.0/16")}),
		del.sign(t, member("b", del.id, 1<<30, "10.244.2.0/24"))); err != nil {
		t.Fatal(err)
	}
	s := state(node("a", a, "10.244.1.0/24"))
	wantAdmitted(t, b, s, "a=10.244.1.0/24")
	if _, err := b.Add(op.sign(t, Statement{Kind: Ban, Name: "stolen", Epoch: 50})); err != nil {
		t.Fatal(err)
	}
	if problems := wantAdmitted(t, b, s, ""); !strings.Contains(problems, "expired") {
		t.Error(problems)
	}
}

// Statements that contradict each other, or the cluster's ranges, cost one node and not the membership.
func TestContradictions(t *testing.T) {
	op, del := newSigner(t), newSigner(t)
	ids := []peer.ID{newSigner(t).id, newSigner(t).id, newSigner(t).id, newSigner(t).id}
	b := NewBook([]peer.ID{op.id})
	if _, err := b.Add(op.sign(t, Statement{Kind: Delegation, ID: del.id, Epoch: 1, Expires: 1 << 40, Blocks: blocks("0.0.0.0/0")}),
		op.sign(t, member("a", ids[0], 20, "10.244.1.0/24")), del.sign(t, member("b", ids[1], 5, "10.244.0.0/22")),
		del.sign(t, member("c", ids[0], 5, "10.244.7.0/24")), del.sign(t, member("d", ids[2], 5, "192.168.0.0/24")),
		del.sign(t, member("e", ids[3], 5, "10.244.2.0/24"))); err != nil {
		t.Fatal(err)
	}
	s := state(node("a", ids[0], "10.244.1.0/24"), node("b", ids[1], "10.244.5.0/24"), node("c", ids[2], "10.244.7.0/24"),
		node("d", ids[3], "10.244.8.0/24"), node("e", ids[3], "10.244.2.0/24"))
	out, _ := b.Apply(s, "")
	if err := out.Validate(); err != nil {
		t.Error(err)
	}
	if got := out.Nodes[0].Name; got != "a" {
		t.Errorf("%v", out.Nodes)
	}
	for _, n := range out.Nodes {
		if n.Name == "b" || n.Name == "c" || n.Name == "d" {
			t.Errorf("%s is a member", n.Name)
		}
	}
}

// TestNoForgery: whatever is sent, in whatever order, nothing counts that no pinned key has signed, or its delegate within its
// scope; and no book forgets what is newer.
func TestNoForgery(t *testing.T) {
	op, del, forger := newSigner(t), newSigner(t), newSigner(t)
	r := mrand.New(mrand.NewPCG(1, 2))
	scope := blocks("10.244.0.0/18")
	var texts []string
	newest := map[string]uint64{} // by name, what a pinned key has signed
	for i := range 400 {
		who := []signer{op, del, forger}[r.IntN(3)]
		name := fmt.Sprint("n", r.IntN(8))
		x := member(name, newSigner(t).id, uint64(1+r.IntN(50)), fmt.Sprintf("10.244.%d.0/24", r.IntN(256)))
		if r.IntN(10) == 0 {
			x = Statement{Kind: Delegation, ID: who.id, Epoch: x.Epoch, Expires: 1 << 40, Blocks: scope}
			if who.id == op.id {
				x.ID = del.id
			}
		}
		text := who.sign(t, x)
		if i%7 == 0 { // one bit of it is another
			raw := []byte(text)
			raw[r.IntN(len(raw))] ^= 1
			text = string(raw)
		} else if who.id == op.id && x.Kind == Member {
			newest[name] = max(newest[name], x.Epoch)
		}
		texts = append(texts, text)
	}
	var nodes []mesh.Node
	for i := range 8 {
		nodes = append(nodes, node(fmt.Sprint("n", i), forger.id, "10.244.250.0/24"))
	}
	digest := uint64(0)
	for round := range 10 {
		r.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
		b := NewBook([]peer.ID{op.id})
		for part := range slices.Chunk(texts, 1+r.IntN(40)) {
			_, _ = b.Add(part...)
		}
		for range 2 { // as a source does, with each change
			_, _ = b.Add(texts...)
		}
		for _, x := range b.Statements() {
			switch {
			case x.Signer == op.id:
				if x.Kind == Member && x.Epoch != newest[x.Name] {
					t.Errorf("%s: epoch %d is held, %d was signed", x.Name, x.Epoch, newest[x.Name])
				}
			case x.Signer != del.id || x.Kind != Member || !mesh.Inside(scope, x.Blocks[0]) || newest[x.Name] > 0:
				t.Errorf("%s of %s, signed by %s, counts", x.Kind, x.Who(), x.Signer)
			}
		}
		out, _ := b.Apply(state(nodes...), "")
		for _, n := range out.Nodes {
			if n.PeerID == mesh.PeerID(forger.id.String()) {
				t.Errorf("the source's word counts for %s", n.Name)
			}
		}
		if round > 0 && b.Digest() != digest {
			t.Error("the order of arrival decides")
		}
		digest = b.Digest()
	}
}

// What is kept counts again after a restart, also with a torn line at its end, and nothing else in the file does.
func TestKept(t *testing.T) {
	op, forger := newSigner(t), newSigner(t)
	path := filepath.Join(t.TempDir(), "statements")
	b := NewBook([]peer.ID{op.id})
	if err := b.Load(path, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := b.Add(op.sign(t, member("a", op.id, uint64(i+1), fmt.Sprintf("10.244.%d.0/24", i)))); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	forged := forger.sign(t, member("a", op.id, 99, "10.244.9.0/24"))
	lie, err := Sign(member("a", op.id, 99, "10.244.9.0/24"), op.key) // with a signature that is wrong, and a tag of another secret
	if err != nil {
		t.Fatal(err)
	}
	lie.raw = lie.raw[:len(lie.raw)-1] + string(lie.raw[len(lie.raw)-1]^1)
	strangers := NewBook(nil)
	strangers.kept.seal = []byte("another")
	forged += "\n" + lie.String() + " " + strangers.kept.tag(lie.raw)
	if err := os.WriteFile(path, append(whole, (forged+"\n"+forged[:40])...), 0o600); err != nil {
		t.Fatal(err)
	}
	other := NewBook([]peer.ID{forger.id}) // pins another key, and believes nothing else
	if _ = other.Load(path, []byte("secret")); other.Len() != 1 || other.Statements()[0].Signer != forger.id {
		t.Errorf("%v", other.Statements())
	}
	if err := os.WriteFile(path, append(whole, (forged+"\n"+forged[:40])...), 0o600); err != nil {
		t.Fatal(err)
	}
	again := NewBook([]peer.ID{op.id})
	if err := again.Load(path, []byte("secret")); !errors.Is(err, ErrSigner) || !errors.Is(err, ErrStatement) {
		t.Errorf("forged lines are not named: %v", err)
	}
	if _, err := again.Add(op.sign(t, member("b", op.id, 6, "10.244.7.0/24"))); err != nil {
		t.Fatal(err)
	}
	last := NewBook([]peer.ID{op.id})
	_ = last.Load(path, []byte("secret"))
	if all := last.Statements(); len(all) != 2 || all[0].Blocks[0] != blocks("10.244.4.0/24")[0] || all[1].Name != "b" {
		t.Errorf("%v", all)
	}
}

func exchange(t testing.TB, a, b *Book) (fromA, fromB Count, errA, errB error) {
	t.Helper()
	return exchangeOver(t, a, b, func(s io.ReadWriteCloser) io.ReadWriter { return s })
}

// exchangeOver is exchange, where a's side of the stream is what over makes of it.
func exchangeOver(t testing.TB, a, b *Book, over func(io.ReadWriteCloser) io.ReadWriter) (fromA, fromB Count, errA, errB error) {
	t.Helper()
	x, y := tcptest.Pair(t)
	defer x.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer y.Close()
		fromB, errB = b.Exchange(y)
	}()
	fromA, errA = a.Exchange(over(x))
	x.Close()
	<-done
	return fromA, fromB, errA, errB
}

func TestExchange(t *testing.T) {
	op := newSigner(t)
	a, b := NewBook([]peer.ID{op.id}), NewBook([]peer.ID{op.id})
	for i := range 300 {
		text := op.sign(t, member(fmt.Sprint("n", i), newSigner(t).id, 5, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)))
		if i%3 > 0 {
			_, _ = a.Add(text)
		}
		if i%3 < 2 {
			_, _ = b.Add(text)
		}
	}
	serve(t, a, b)
	if a.Len() != 300 || a.Digest() != b.Digest() {
		t.Errorf("%d and %d statements", a.Len(), b.Len())
	}
	if _, err := a.Add(op.sign(t, Statement{Kind: Ban, Name: "n7", Epoch: 9})); err != nil {
		t.Fatal(err)
	}
	if _, sent := serve(t, a, b); sent > 20 || b.Len() != 301 {
		t.Errorf("%d statements sent for one, %d held", sent, b.Len())
	}
	if _, sent := serve(t, a, b); sent != 0 {
		t.Errorf("%d sent for nothing", sent)
	}
}

func serve(t *testing.T, a, b *Book) (added, sent int) {
	t.Helper()
	fromA, fromB, errA, errB := exchange(t, a, b)
	if errA != nil || errB != nil {
		t.Fatalf("%v, %v", errA, errB)
	}
	return fromA.Added + fromB.Added, fromA.Sent + fromB.Sent
}

// A peer that sends what it has forged is named, and what the other one has signed counts.
func TestExchangeRefusesForgeries(t *testing.T) {
	op, forger := newSigner(t), newSigner(t)
	honest, liar := NewBook([]peer.ID{op.id}), NewBook([]peer.ID{op.id, forger.id})
	_, _ = honest.Add(op.sign(t, member("a", op.id, 5, "10.244.1.0/24")))
	_, _ = liar.Add(forger.sign(t, member("a", forger.id, 9, "10.244.1.0/24")), forger.sign(t, Statement{Kind: Ban, Name: "b", Epoch: 9}))
	if _, _, err, _ := exchange(t, honest, liar); !errors.Is(err, ErrSigner) || !strings.Contains(err.Error(), forger.id.String()) {
		t.Errorf("%v", err)
	}
	wantAdmitted(t, honest, state(node("a", op.id, "10.244.1.0/24")), "a=10.244.1.0/24")
	if honest.Len() != 1 {
		t.Errorf("%d held", honest.Len())
	}
}

func TestKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	key, err := NewKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := LoadKey(path); err != nil || !again.Equals(key) {
		t.Errorf("%v", err)
	}
	if _, err := NewKey(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second key in its place: %v", err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("%v", err)
	}
}

// FuzzStatement: what is read is signed, and means one thing.
func FuzzStatement(f *testing.F) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	id, _ := peer.IDFromPrivateKey(key)
	for _, s := range []Statement{member("a", id, 5, "10.244.1.0/24", "fd00::/64"), {Kind: Ban, ID: id, Epoch: 1},
		{Kind: Delegation, ID: id, Epoch: 1, Expires: 2, Blocks: blocks("10.0.0.0/8")}} {
		payload, err := s.MarshalRecord()
		if err != nil {
			f.Fatal(err)
		}
		x, _ := Sign(s, key)
		f.Add(payload)
		f.Add([]byte(x.raw))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Statement
		if s.UnmarshalRecord(data) == nil {
			if again, err := s.MarshalRecord(); err != nil || !bytes.Equal(again, data) {
				t.Errorf("another encoding of %v is read", s)
			}
			x, err := Sign(s, key)
			if err != nil {
				t.Fatal(err)
			}
			if back, err := Read(x.String()); err != nil || back.subject() != s.subject() || back.Signer != id {
				t.Errorf("%v: %v", back, err)
			}
		}
		b := NewBook([]peer.ID{id})
		if x, err := open(string(data), b.wanted, false); err == nil && x.Signer != id {
			t.Error("a stranger's statement")
		}
		_, _ = b.receive(bytes.NewReader(data), nil)
		for _, x := range b.Statements() {
			if x.Signer != id {
				t.Error("a stranger's statement is held")
			}
		}
	})
}

// processor reports the processor's time by operation, whatever else this machine does.
func processor(b *testing.B) (report func()) {
	b.Helper()
	now := func() float64 {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
	}
	began := now()
	return func() { b.ReportMetric((now()-began)/float64(b.N), "cpu-ms/op") }
}

// BenchmarkMembers measures a cluster of so many members.
func BenchmarkMembers(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		op := newSigner(b)
		var texts []string
		var nodes []mesh.Node
		for i := range n {
			list := fmt.Sprintf("10.%d.%d.0/24", 64+i/256, i%256)
			id := newSigner(b).id
			texts = append(texts, op.sign(b, member(fmt.Sprintf("edge-%05d", i), id, 1_800_000_000, list)))
			nodes = append(nodes, node(fmt.Sprintf("edge-%05d", i), id, list))
		}
		s := mesh.State{PodCIDRs: blocks("10.0.0.0/8"), Encryption: mesh.EncryptionAuto, Nodes: nodes}
		full := NewBook([]peer.ID{op.id})
		_, _ = full.Add(texts...)
		b.Run(fmt.Sprintf("Check/%d", n), func(b *testing.B) {
			defer processor(b)()
			for b.Loop() {
				if got, err := NewBook([]peer.ID{op.id}).Add(texts...); got != n || err != nil {
					b.Fatal(got, err)
				}
			}
		})
		b.Run(fmt.Sprintf("Start/%d", n), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "statements")
			before := NewBook([]peer.ID{op.id})
			_ = before.Load(path, []byte("secret"))
			_, _ = before.Add(texts...)
			defer processor(b)()
			for b.Loop() {
				if again := NewBook([]peer.ID{op.id}); again.Load(path, []byte("secret")) != nil || again.Len() != n {
					b.Fatal(again.Len())
				}
			}
		})
		b.Run(fmt.Sprintf("Again/%d", n), func(b *testing.B) {
			defer processor(b)()
			for b.Loop() {
				_, _ = full.Add(texts...)
			}
		})
		b.Run(fmt.Sprintf("Apply/%d", n), func(b *testing.B) {
			defer processor(b)()
			for b.Loop() {
				if out, bad := full.Apply(s, ""); len(out.Nodes) != n || len(bad) > 0 {
					b.Fatal(len(out.Nodes), bad)
				}
			}
		})
		b.Run(fmt.Sprintf("PassOnOne/%d", n), func(b *testing.B) {
			sent := 0
			for i := range b.N {
				other := NewBook([]peer.ID{op.id})
				b.StopTimer()
				other.held, other.digests = maps.Clone(full.held), full.digests
				_, _ = other.Add(op.sign(b, Statement{Kind: Ban, Name: "edge-00007", Epoch: 1_800_000_001 + uint64(i)}))
				b.StartTimer()
				_, fromB, _, _ := exchange(b, full, other)
				sent += fromB.Sent
			}
			b.ReportMetric(float64(sent)/float64(b.N), "statements/op")
		})
		b.Run(fmt.Sprintf("Memory/%d", n), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			book := NewBook([]peer.ID{op.id})
			for b.Loop() {
				_, _ = book.Add(texts...)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "B/member")
			b.ReportMetric(float64(len(Lines(book.Statements())))/float64(n), "fileB/member")
			runtime.KeepAlive(book)
		})
	}
}

// One key file serves several clusters: each has a key of its own, always the same, and nothing signed for one counts in another.
func TestForCluster(t *testing.T) {
	seed := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	file, err := crypto.UnmarshalEd25519PrivateKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	of := func(cluster string) signer {
		key, err := ForCluster(file, cluster)
		if err != nil {
			t.Fatal(err)
		}
		id, err := peer.IDFromPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return signer{key, id}
	}
	shops, plants := of("shops"), of("plants")
	// Pinned keys must not change with a release.
	if want := "12D3KooWLRfMAoprkP7EsZRaRrqmW46aJhK8TTg7KDEHMFy8nR9S"; shops.id.String() != want || !of("").key.Equals(file) || shops.id == plants.id {
		t.Errorf("keys %s and %s, want %s first", shops.id, plants.id, want)
	}
	a := newSigner(t).id
	text := shops.sign(t, member("a", a, 5, "10.244.1.0/24"))
	for _, c := range []struct {
		pinned signer
		want   string
	}{{shops, "a=10.244.1.0/24"}, {plants, ""}, {of(""), ""}} {
		b := NewBook([]peer.ID{c.pinned.id})
		if _, err := b.Add(text); (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrSigner) {
			t.Errorf("pinned %s: %v", c.pinned.id, err)
		}
		wantAdmitted(t, b, state(node("a", a, "10.244.1.0/24")), c.want)
	}
}
