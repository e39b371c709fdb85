package signed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
)

func (s signer) signed(t testing.TB, st Statement) Signed {
	t.Helper()
	x, err := Read(s.sign(t, st))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (s signer) grant(t testing.TB, to peer.ID) string {
	t.Helper()
	return s.sign(t, Statement{Kind: Delegation, ID: to, Epoch: 1, Expires: 1 << 40, Blocks: blocks("10.0.0.0/8")})
}

func slash24(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
}

// wire is what a member sends that passes these on.
func wire(all ...string) *bytes.Buffer {
	var out bytes.Buffer
	for _, raw := range all {
		out.Write(binary.BigEndian.AppendUint16(nil, uint16(len(raw))))
		out.WriteString(raw)
	}
	return &out
}

var theEnd = []byte{0, 0}

// Whoever steals a delegate's key fills no book: pinned keys' statements are taken all the same, and what delegates have signed about
// nodes that are gone is forgotten.
func TestFull(t *testing.T) {
	op, del := newSigner(t), newSigner(t)
	b := NewBook([]peer.ID{op.id})
	if _, err := b.Add(op.grant(t, del.id)); err != nil {
		t.Fatal(err)
	}
	x := del.signed(t, member("x", del.id, 5, "10.1.0.0/24"))
	const many = maxHeld + 1000
	for i := range many {
		x.Name = fmt.Sprint("x", i)
		b.put(x.subject(), &x)
	}
	late := del.signed(t, member("late", del.id, 6, "10.2.0.0/24"))
	if n, err := b.receive(wire(late.raw, ""), nil); n.Added != 0 || !errors.Is(err, errFull) {
		t.Errorf("a member passes on more of a delegate's: %+v, %v", n, err)
	}
	if n, err := b.Add(late.String(), op.sign(t, Statement{Kind: Ban, Name: "edge-7", Epoch: 7})); n != 2 || err != nil {
		t.Errorf("%d taken, %v", n, err)
	}
	s := state(node("late", del.id, "10.2.0.0/24"))
	s.PodCIDRs = blocks("10.0.0.0/8")
	wantAdmitted(t, b, s, "late=10.2.0.0/24")
	if b.Len() != maxHeld+2 {
		t.Errorf("%d held", b.Len())
	}
	wantAdmitted(t, b, s, "late=10.2.0.0/24")
	if n, err := b.Add(op.sign(t, Statement{Kind: Ban, ID: del.id, Epoch: 8})); n != 1 || err != nil || b.Len() != 3 {
		t.Errorf("ban of the delegate: %d taken, %v, %d held", n, err, b.Len())
	}
}

// The whole file is written again while this node runs, and neither zeros nor long lines hide what follows them.
func TestFileStaysSmallAndReadable(t *testing.T) {
	op := newSigner(t)
	path := filepath.Join(t.TempDir(), "statements")
	b := NewBook([]peer.ID{op.id})
	if err := b.Load(path, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	const names = 64
	for round := range 60 {
		var texts []string
		for i := range names {
			texts = append(texts, op.sign(t, Statement{Kind: Member, Name: fmt.Sprint("n", i), ID: op.id, Epoch: uint64(round + 1), Blocks: []netip.Prefix{slash24(i)}}))
		}
		if n, err := b.Add(texts...); n != names || err != nil {
			t.Fatal(n, err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || len(text) > slack+100_000 {
		t.Errorf("%d bytes for %d statements, %v", len(text), names, err)
	}
	text = append(append(bytes.Repeat([]byte{0}, 100_000), '\n'), append(text, strings.Repeat("!", 100_000)+"\n"+op.sign(t, Statement{Kind: Ban, Name: "last", Epoch: 99})...)...)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	again := NewBook([]peer.ID{op.id})
	if err := again.Load(path, []byte("secret")); err != nil || again.Len() != names+1 {
		t.Errorf("%d statements, %v", again.Len(), err)
	}
}

// A ban that comes before the renewals, which the operator has signed in time, ends nobody's membership: not when the exchange
// breaks off, not after a restart then, not at its end.
func TestRenewedInTime(t *testing.T) {
	op := newSigner(t)
	path := filepath.Join(t.TempDir(), "statements")
	b := NewBook([]peer.ID{op.id})
	if err := b.Load(path, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	var s mesh.State
	s.PodCIDRs, s.Encryption = blocks("10.0.0.0/8"), mesh.EncryptionAuto
	renewed := []string{op.signed(t, Statement{Kind: Ban, Name: "other", Epoch: 1100}).raw}
	for i := range 300 {
		x := Statement{Kind: Member, Name: fmt.Sprintf("n%03d", i), ID: newSigner(t).id, Epoch: 100, Expires: 1000, Blocks: []netip.Prefix{slash24(i)}}
		s.Nodes = append(s.Nodes, node(x.Name, x.ID, x.Blocks[0].String()))
		if _, err := b.Add(op.sign(t, x)); err != nil {
			t.Fatal(err)
		}
		x.Epoch, x.Expires = 900, 3000
		renewed = append(renewed, op.signed(t, x).raw)
	}
	members := func(what string, b *Book, want int) {
		t.Helper()
		if out, bad := b.Apply(s, ""); len(out.Nodes) != want {
			t.Errorf("%s: %d members, %d problems", what, len(out.Nodes), len(bad))
		}
	}
	if n, err := b.receive(wire(renewed[:100]...), nil); n.Added != 64 || !errors.Is(err, io.EOF) {
		t.Fatalf("%+v, %v", n, err)
	}
	if out, _ := b.Apply(s, ""); !out.Bans("other", "") {
		t.Error("the ban waits for the end")
	}
	members("broken off", b, 300)
	again := NewBook([]peer.ID{op.id})
	if err := again.Load(path, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	members("after a restart", again, 300)
	if n, err := b.receive(io.MultiReader(wire(renewed...), bytes.NewReader(theEnd)), nil); n.Added != 237 || err != nil {
		t.Fatalf("%+v, %v", n, err)
	}
	members("at the end", b, 300)
	if n, err := again.receive(bytes.NewReader(theEnd), nil); err != nil { // its renewals are not there
		t.Fatalf("%+v, %v", n, err)
	}
	members("without renewals", again, 63)
}

// A ban by name bans the keys that the node has and had, whoever signed for them. A delegate cannot ban others by it.
func TestBanByNameBansTheKey(t *testing.T) {
	op, del := newSigner(t), newSigner(t)
	t.Run("pinned", func(t *testing.T) { banByName(t, op, del, op) })
	t.Run("delegate", func(t *testing.T) { banByName(t, op, del, del) })
}

func banByName(t *testing.T, op, del, of7 signer) {
	t.Helper()
	first, second, honest := newSigner(t).id, newSigner(t).id, newSigner(t).id
	path := filepath.Join(t.TempDir(), "statements")
	b := NewBook([]peer.ID{op.id})
	if err := b.Load(path, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{op.grant(t, del.id), of7.sign(t, member("edge-7", first, 1, "10.244.1.0/24")), of7.sign(t, member("edge-7", second, 2, "10.244.1.0/24")),
		op.sign(t, member("edge-1", honest, 1, "10.244.9.0/24")), op.sign(t, Statement{Kind: Ban, Name: "edge-7", Epoch: 3}), op.sign(t, Statement{Kind: Ban, Name: "edge-0", Epoch: 3}),
		del.sign(t, member("edge-8", second, 5, "10.244.2.0/24")), del.sign(t, member("edge-9", first, 5, "10.244.3.0/24")), del.sign(t, member("edge-0", honest, 5, "10.244.4.0/24"))} {
		if _, err := b.Add(text); err != nil {
			t.Fatal(err)
		}
	}
	s := state(node("edge-1", honest, "10.244.9.0/24"), node("edge-8", second, "10.244.2.0/24"), node("edge-9", first, "10.244.3.0/24"))
	wantAdmitted(t, b, s, "edge-1=10.244.9.0/24")
	b.kept.torn = true // written again it has the former key, too
	if err := b.Save(); err != nil {
		t.Fatal(err)
	}
	again := NewBook([]peer.ID{op.id})
	if err := again.Load(path, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	wantAdmitted(t, again, s, "edge-1=10.244.9.0/24")
	// So has a member that joined later.
	later := NewBook([]peer.ID{op.id})
	if _, _, errA, errB := exchange(t, b, later); errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	wantAdmitted(t, later, s, "edge-1=10.244.9.0/24")
	// And one that has the newest statement from elsewhere.
	fed := NewBook([]peer.ID{op.id})
	for _, x := range b.Statements() {
		if _, err := fed.Add(x.String()); err != nil {
			t.Fatal(err)
		}
	}
	wantAdmitted(t, fed, s, "edge-1=10.244.9.0/24 edge-9=10.244.3.0/24")
	for i, want := range []int{1, 0} {
		if n, _, errA, errB := exchange(t, fed, b); n.Added != want || errA != nil || errB != nil {
			t.Fatalf("exchange %d: %+v, %v, %v", i, n, errA, errB)
		}
	}
	wantAdmitted(t, fed, s, "edge-1=10.244.9.0/24")
	if fed.Digest() != b.Digest() {
		t.Error("they still differ")
	}
	// With another key the node comes back, and the stolen ones do not.
	if _, err := b.Add(op.sign(t, member("edge-7", newSigner(t).id, 6, "10.244.1.0/24"))); err != nil {
		t.Fatal(err)
	}
	s.Nodes = append(s.Nodes, node("edge-7", first, "10.244.1.0/24"))
	wantAdmitted(t, b, s, "edge-1=10.244.9.0/24 edge-7=10.244.1.0/24")
}

// What costs a check of a signature is bounded: a statement has one encoding, and an older one is skipped unseen.
func TestUselessIsCheap(t *testing.T) {
	op := newSigner(t)
	b := NewBook([]peer.ID{op.id})
	old := op.signed(t, member("n", op.id, 1, "10.244.1.0/24"))
	if _, err := b.Add(op.sign(t, member("n", op.id, 2, "10.244.1.0/24"))); err != nil {
		t.Fatal(err)
	}
	variant := old.raw + "\xf8\x07\x01" // field 127, which nobody reads
	if _, err := b.receive(wire(variant, ""), nil); !errors.Is(err, ErrStatement) {
		t.Errorf("another encoding: %v", err)
	}
	unchecked := old.raw[:len(old.raw)-1] + string(old.raw[len(old.raw)-1]^1)
	if n, err := b.receive(wire(unchecked, ""), nil); err != nil || n.Useless != 1 {
		t.Errorf("the signature of an older one is checked: %+v, %v", n, err)
	}
	var many []string
	for range mostUseless + 1000 {
		many = append(many, old.raw)
	}
	if n, err := b.receive(wire(append(many, "")...), nil); !errors.Is(err, errFull) {
		t.Errorf("%+v, %v", n, err)
	}
}

// Members that pin other keys, as while the operator changes them, do not stop each other.
func TestForeignIsSkipped(t *testing.T) {
	op, next := newSigner(t), newSigner(t)
	a, b := NewBook([]peer.ID{op.id, next.id}), NewBook([]peer.ID{op.id})
	for i := range 400 {
		who := op
		if i%2 == 0 {
			who = next
		}
		if _, err := a.Add(who.sign(t, Statement{Kind: Member, Name: fmt.Sprint("n", i), ID: op.id, Epoch: 5, Blocks: []netip.Prefix{slash24(i)}})); err != nil {
			t.Fatal(err)
		}
	}
	if _, n, _, err := exchange(t, a, b); n.Added != 200 || n.Lacked > 0 || !errors.Is(err, ErrSigner) {
		t.Errorf("%+v, %v", n, err)
	}
	if n, _, _, _ := exchange(t, a, b); n.Lacked != 200 || len(n.Some) != mostSome || n.Some[0] != "n0" { // what it was sent and does not take
		t.Errorf("%d lacked", n.Lacked)
	}
	if _, n, _, _ := exchange(t, a, b); n.Lacked > 0 {
		t.Errorf("%q lacked, where there is more", n.Some)
	}
}

// A relay that pins the operator's key and the controller's lacks nothing of a member that pins one, where both have signed the members.
func TestOtherKeysLackNothing(t *testing.T) {
	op, ctl := newSigner(t), newSigner(t)
	relay := NewBook([]peer.ID{op.id, ctl.id})
	agents := []*Book{NewBook([]peer.ID{op.id}), NewBook([]peer.ID{ctl.id})}
	for i := range 100 {
		for j, who := range []signer{op, ctl} {
			text := who.sign(t, member(fmt.Sprint("n", i), op.id, uint64(5+(i+j)%2), slash24(i).String()))
			for _, b := range []*Book{relay, agents[j]} {
				if _, err := b.Add(text); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for i, b := range agents {
		if n, _, _, _ := exchange(t, b, relay); n.Lacked > 0 {
			t.Errorf("agent %d: %d lacked", i, n.Lacked)
		}
	}
	// What only the agent has it still lacks.
	if _, err := agents[0].Add(op.sign(t, Statement{Kind: Ban, Name: "n7", Epoch: 9})); err != nil {
		t.Fatal(err)
	}
	if n, _, _, _ := exchange(t, agents[0], relay); n.Lacked != 1 || n.Some[0] != "ban n7" {
		t.Errorf("%q lacked", n.Some)
	}
}

// cut ends a stream after so many bytes written.
type cut struct {
	io.ReadWriteCloser
	left int
}

func (c *cut) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		_ = c.ReadWriteCloser.(*net.TCPConn).CloseWrite() // what was written before arrives: a reset would take that back
		return 0, io.ErrClosedPipe
	}
	return c.ReadWriteCloser.Write(b)
}

// An exchange that breaks off is continued by the next one.
func TestExchangeContinues(t *testing.T) {
	op := newSigner(t)
	a, b := NewBook([]peer.ID{op.id}), NewBook([]peer.ID{op.id})
	const many = 3000
	size := 0
	for i := range many {
		x := op.signed(t, Statement{Kind: Member, Name: fmt.Sprint("n", i), ID: op.id, Epoch: 5, Blocks: []netip.Prefix{slash24(i)}})
		size += len(x.raw) + 2
		if _, err := a.Add(x.String()); err != nil {
			t.Fatal(err)
		}
	}
	_, _, errA, _ := exchangeOver(t, a, b, func(s io.ReadWriteCloser) io.ReadWriter { return &cut{s, size * 3 / 4} })
	if got := b.Len(); errA == nil || got < many/2 || got >= many {
		t.Fatalf("%d of %d passed on, %v", got, many, errA)
	}
	if _, sent := serve(t, a, b); sent > many/2 || b.Len() != many {
		t.Errorf("%d sent again, %d held", sent, b.Len())
	}
}

// A signer's clock that is set to 2100 expires nobody, and what it has signed counts.
func TestLeap(t *testing.T) {
	op := newSigner(t)
	now := uint64(time.Now().Unix())
	x := member("a", op.id, now-100, "10.244.1.0/24")
	x.Expires = now + 10*365*24*3600
	s := state(node("a", op.id, "10.244.1.0/24"))
	b := NewBook([]peer.ID{op.id})
	if n, err := b.Add(op.sign(t, x), op.sign(t, Statement{Kind: Ban, Name: "other", Epoch: 4_102_444_800})); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	wantAdmitted(t, b, s, "a=10.244.1.0/24")
	if out, _ := b.Apply(s, ""); !out.Bans("other", "") {
		t.Error("the ban does not count")
	}
	x.Expires = now + 5
	if _, err := b.Add(op.sign(t, member("z", newSigner(t).id, now+20, "10.244.3.0/24")), op.sign(t, func() Statement { x.Epoch = now - 50; return x }())); err != nil {
		t.Fatal(err)
	}
	wantAdmitted(t, b, s, "")
}

// A disk that refuses ends no exchange, is named, and what it lacks is written once it is well.
func TestDiskRefuses(t *testing.T) {
	op := newSigner(t)
	dir := filepath.Join(t.TempDir(), "state")
	path := filepath.Join(dir, "statements")
	a, b := NewBook([]peer.ID{op.id}), NewBook([]peer.ID{op.id})
	for i := range 200 {
		if _, err := a.Add(op.sign(t, Statement{Kind: Member, Name: fmt.Sprint("n", i), ID: op.id, Epoch: 5, Blocks: []netip.Prefix{slash24(i)}})); err != nil {
			t.Fatal(err)
		}
	}
	_ = b.Load(path, []byte("secret"))
	if _, n, _, err := exchange(t, a, b); n.Added != 200 || !errors.Is(err, ErrKept) || !strings.Contains(err.Error(), path) {
		t.Errorf("%+v, %v", n, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Add(); err != nil {
		t.Fatal(err)
	}
	again := NewBook([]peer.ID{op.id})
	if err := again.Load(path, []byte("secret")); err != nil || again.Len() != 200 {
		t.Errorf("%d statements, %v", again.Len(), err)
	}
}

// A start with mistyped signers loses nothing: with the right ones all of it counts again.
func TestMistypedSigners(t *testing.T) {
	op, typo := newSigner(t), newSigner(t)
	path := filepath.Join(t.TempDir(), "statements")
	for i, who := range []signer{op, typo, typo, op, op} {
		b := NewBook([]peer.ID{who.id})
		_ = b.Load(path, []byte("secret"))
		want := 1
		if i == 0 {
			if _, err := b.Add(op.sign(t, Statement{Kind: Ban, Name: "edge-7", Epoch: 5})); err != nil {
				t.Fatal(err)
			}
		} else if who.id == typo.id {
			want = 0
		}
		if b.Len() != want {
			t.Errorf("start %d: %d statements", i, b.Len())
		}
	}
}

// Where a delegate's key is banned, what it had replaced counts again, here as at members that lack its statements.
func TestReplacedCountsAgain(t *testing.T) {
	op, honest, stolen := newSigner(t), newSigner(t), newSigner(t)
	id := newSigner(t).id
	grants := []string{op.grant(t, honest.id), op.grant(t, stolen.id), honest.sign(t, member("edge-7", id, 1, "10.244.1.0/24"))}
	ban := op.sign(t, Statement{Kind: Ban, ID: stolen.id, Epoch: 9})
	s := state(node("edge-7", id, "10.244.1.0/24"))
	b, other := NewBook([]peer.ID{op.id}), NewBook([]peer.ID{op.id})
	for _, text := range append(grants, stolen.sign(t, member("edge-7", newSigner(t).id, 2, "10.244.1.0/24")), ban) {
		if _, err := b.Add(text); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.Add(append(grants, ban)...); err != nil {
		t.Fatal(err)
	}
	wantAdmitted(t, b, s, "edge-7=10.244.1.0/24")
	if b.Digest() != other.Digest() || len(b.former) > 0 {
		t.Errorf("they differ; former: %v", b.former)
	}
}

// Of departures the newest stay, whatever order they come in; older ones are not taken.
func TestDeparturesAreBounded(t *testing.T) {
	op := newSigner(t)
	gone := func(name string, epoch uint64) string {
		st := member(name, op.id, epoch, "10.244.1.0/24")
		st.Expires = epoch
		return op.sign(t, st)
	}
	first, second, third := gone("a", 5), gone("b", 6), gone("c", 7)
	one, two := NewBook([]peer.ID{op.id}), NewBook([]peer.ID{op.id})
	for _, x := range []struct {
		b   *Book
		all []string
	}{{one, []string{first, second, third}}, {two, []string{third, first, second}}} {
		for _, text := range append(x.all, op.sign(t, member("d", op.id, 3, "10.244.4.0/24"))) {
			if _, err := x.b.Add(text); err != nil {
				t.Fatal(err)
			}
			x.b.bound(2)
		}
		if n, err := x.b.Add(gone("e", 4)); n != 0 || err != nil || x.b.Len() != 3 {
			t.Errorf("%d statements; %d new, %v", x.b.Len(), n, err)
		}
	}
	if one.Digest() != two.Digest() {
		t.Error("two members keep different ones")
	}
}

// A stolen delegate pushes out no departure of a pinned key, whatever its dates.
func TestDelegatesPushNoDepartureOut(t *testing.T) {
	op, del := newSigner(t), newSigner(t)
	gone := func(s signer, name string, epoch uint64) string {
		st := member(name, op.id, epoch, "10.244.1.0/24")
		st.Expires = epoch
		return s.sign(t, st)
	}
	b := NewBook([]peer.ID{op.id})
	was := op.sign(t, member("a", op.id, 4, "10.244.1.0/24"))
	for _, text := range []string{op.grant(t, del.id), was, gone(op, "a", 5), gone(del, "b", 1<<30), gone(del, "c", 1<<31), gone(op, "d", 6)} {
		if n, err := b.Add(text); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		b.bound(2)
	}
	for _, name := range []string{"a", "d"} {
		if x := b.held["m"+name]; !x.Gone() || x.Signer != op.id {
			t.Errorf("%s: %+v", name, x.Statement)
		}
	}
	if n, err := b.Add(was); n != 0 || err != nil {
		t.Errorf("what ended counts again: %d, %v", n, err)
	}
}
