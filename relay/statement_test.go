package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/passon"
	"edgemesh/internal/membership/signed"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/identity"
)

// signing makes statements of one key.
type signing struct {
	t    *testing.T
	key  crypto.PrivKey
	self peer.ID
}

func newSigning(t *testing.T) signing {
	t.Helper()
	key, self := keytest.New(t)
	return signing{t, key, self}
}

// sign returns a statement in the form of files, and as it is shown.
func (s signing) sign(x signed.Statement) (text, raw string) {
	s.t.Helper()
	done, err := signed.Sign(x, s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	b := signed.NewBook([]peer.ID{s.self})
	if _, err := b.Add(done.String()); err != nil {
		s.t.Fatal(err)
	}
	return done.String(), b.Own(x.Name, x.ID)
}

func member(name string, id peer.ID, epoch uint64, third int) signed.Statement {
	return signed.Statement{Kind: signed.Member, Name: name, ID: id, Epoch: epoch, Blocks: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", third))}}
}

func (s signing) relay(dir string) *running {
	s.t.Helper()
	return runRelayWith(s.t, dir, fmt.Sprintf("signers: [%s]\n", s.self))
}

// carrying has n exchange what book has with the relay, as an agent does.
func carrying(t *testing.T, n *p2p.Node, book *signed.Book) *passon.Exchanger {
	t.Helper()
	x := passon.New(passon.Config{Book: func() *signed.Book { return book }, Connected: n.AtRelays, Log: slog.New(slog.DiscardHandler),
		Open: func(ctx context.Context, p peer.ID) (passon.Stream, error) {
			return n.OpenAtRelay(ctx, p, identity.SignedProtocol)
		}})
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); x.Run(ctx) }()
	t.Cleanup(func() { end(); <-done })
	return x
}

func refusedBy(r *running, reason string) func() error {
	return fair.True(func() bool {
		_, text := r.get("/metrics")
		return strings.Contains(text, fmt.Sprintf("edgemesh_relay_refused_total{reason=%q}", strings.ReplaceAll(reason, " ", "_")))
	})
}

// A relay that pins a key serves whoever shows a statement of it, once more after a restart without
// being shown any; a ban reaches it through any member within seconds, and so does that a node is
// gone. An agent of an earlier release, which shows nothing, is refused and counted, until the
// relay knows what was signed about it.
func TestRelayThatPinsAKey(t *testing.T) {
	t.Parallel()
	dir, s := t.TempDir(), newSigning(t)
	r := s.relay(dir)
	book := signed.NewBook([]peer.ID{s.self})
	nodes, keys, ids := map[string]*p2p.Node{}, map[string]crypto.PrivKey{}, map[string]peer.ID{}
	for i, name := range []string{"a", "b", "c"} {
		key, id := keytest.New(t)
		text, raw := s.sign(member(name, id, 5, i))
		if _, err := book.Add(text); err != nil {
			t.Fatal(err)
		}
		n := joinerWithKey(t, r.info, nil, key)
		n.Show(raw)
		nodes[name], keys[name], ids[name] = n, key, id
	}
	oldKey, oldID := keytest.New(t)
	old := joinerWithKey(t, r.info, nil, oldKey)
	for name, n := range nodes {
		fair.Eventually(t, deadline, name+" is served", reserved(n))
	}
	fair.Eventually(t, time.Minute, "who shows nothing is refused", refusedBy(r, "no statement"))
	if st := old.Status().Relays[0]; st.Reserved {
		t.Errorf("it is served: %+v", st)
	}
	waited := fair.Start()
	_, raw := s.sign(member("d", oldID, 5, 0)) // a's block: that a node is gone may never have been signed
	old.Show(raw)
	fair.Eventually(t, deadline, "it is served once something is signed about it", reserved(old))
	if d := waited.Elapsed(); d > 10*time.Second {
		t.Errorf("after %v", d)
	}
	waited.Stop()
	silentKey, silentID := keytest.New(t)
	known, _ := s.sign(member("e", silentID, 5, 4))
	if _, err := book.Add(known); err != nil {
		t.Fatal(err)
	}
	silent := joinerWithKey(t, r.info, nil, silentKey)
	carrying(t, nodes["a"], book)
	fair.Eventually(t, time.Minute, "who shows nothing is served once a member has passed on what was signed about it", reserved(silent))
	clock := fair.Start()
	defer clock.Stop()
	ban, _ := s.sign(signed.Statement{Kind: signed.Ban, Name: "b", Epoch: 6})
	gone := member("c", ids["c"], 7, 2)
	gone.Expires = gone.Epoch
	left, _ := s.sign(gone)
	if _, err := book.Add(ban, left); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "c"} {
		fair.Eventually(t, deadline, name+" is cut off", fair.True(func() bool { return !nodes[name].Status().Relays[0].Reserved }))
	}
	if d := clock.Elapsed(); d > 3*time.Second {
		t.Errorf("cut off after %v", d)
	}
	r.stop()
	again := s.relay(dir)
	if st := again.status(); st.Members != 3 {
		t.Errorf("after a restart: %d members", st.Members)
	}
	for name, c := range map[string]struct {
		third int
		says  string
	}{"b": {1, ""}, "c": {2, "gone"}} { // whom the relay bans it tells nothing
		_, raw := s.sign(member(name, ids[name], 5, c.third))
		if words, err := shows(newNodeWithKey(t, keys[name]), again.info, frame(raw)); err == nil || !strings.Contains(words, c.says) {
			t.Errorf("%s by its former statement: %q, %v", name, words, err)
		}
	}
}

func frame(raw string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(raw))), raw...)
}

// shows sends bytes where a member shows its statement, and returns the relay's words.
func shows(n node, relay peer.AddrInfo, bytes []byte) (words string, err error) {
	n.Peerstore().AddAddrs(relay.ID, relay.Addrs, time.Hour)
	c, err := n.Network().DialPeer(n.ctx(), relay.ID)
	if err != nil {
		return "", err
	}
	s, err := conns.Open(n.ctx(), c, identity.MemberProtocol)
	if err != nil {
		return "", err
	}
	defer func() { _ = s.Reset() }()
	_ = s.SetDeadline(time.Now().Add(deadline))
	go func() { _, _ = s.Write(bytes) }()
	var length [1]byte
	if _, err := io.ReadFull(s, length[:]); err != nil {
		return "", err
	}
	out := make([]byte, length[0])
	if _, err = io.ReadFull(s, out); err == nil && len(out) > 0 {
		err = errors.New("refused")
	}
	return string(out), err
}

// What is shown at the door makes its peer a member only where a pinned key has signed it about this peer and nothing newer is known.
func TestRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	s, other, dir := newSigning(t), newSigning(t), t.TempDir()
	cluster := newSigning(t)
	var err error
	if cluster.key, err = signed.ForCluster(s.key, "elsewhere"); err != nil {
		t.Fatal(err)
	}
	if cluster.self, err = peer.IDFromPrivateKey(cluster.key); err != nil {
		t.Fatal(err)
	}
	r := s.relay(dir)
	_, theirs := keytest.New(t)
	first := newNode(t)
	_, newer := s.sign(member("replaced", first.ID(), 6, 1))
	if words, err := shows(first, r.info, frame(newer)); err != nil {
		t.Fatalf("%q, %v", words, err)
	}
	by := func(s signing, name string) func(peer.ID) []byte {
		return func(id peer.ID) []byte { _, raw := s.sign(member(name, id, 5, 1)); return frame(raw) }
	}
	good := by(s, "a")
	for what, c := range map[string]struct {
		bytes func(peer.ID) []byte
		says  string
	}{
		"forged":                 {func(id peer.ID) []byte { b := good(id); b[len(b)-3] ^= 1; return b }, "not a signed statement"},
		"another key's":          {by(other, "a"), "not in signers"},
		"another cluster's":      {by(cluster, "a"), "not in signers"},
		"about a different peer": {func(peer.ID) []byte { return good(theirs) }, "about another peer"},
		"older":                  {by(s, "replaced"), "older than"},
		"1 MB":                   {func(peer.ID) []byte { return append([]byte{0xff, 0xff}, make([]byte, 1<<20)...) }, "a larger one"},
		"half of one":            {func(id peer.ID) []byte { return good(id)[:100] }, ""},
		"silence":                {func(peer.ID) []byte { return nil }, ""},
	} {
		n, clock := newNode(t), fair.Start()
		words, err := shows(n, r.info, c.bytes(n.ID()))
		if err == nil || !strings.Contains(words, c.says) || c.says == "" && words != "" {
			t.Errorf("%s: %q, %v; want %q", what, words, err, c.says)
		}
		if d := clock.Elapsed(); d > 7*time.Second {
			t.Errorf("%s: after %v", what, d)
		}
		clock.Stop()
		if err := r.reserve(n); err == nil {
			t.Errorf("%s: a reservation", what)
		}
	}
	n := newNode(t)
	if words, err := shows(n, r.info, good(n.ID())); err != nil {
		t.Fatalf("the good one: %q, %v", words, err)
	}
	if err := r.reserve(n); err != nil {
		t.Error(err)
	}
	if words, err := shows(n, r.info, by(other, "a")(n.ID())); err != nil { // as after the cluster's key was lost
		t.Errorf("a member, by a key that is new: %q, %v", words, err)
	}
	fair.Eventually(t, deadline, "refusals are counted by reason", refusedBy(r, "statement not taken"))
}

// A member that shows what was signed about it is served as before where a relay has a list, or requires the secret.
func TestOtherRelaysAreShownNothing(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	key, id := keytest.New(t)
	_, raw := s.sign(member("n0", id, 5, 0))
	listed := t.TempDir()
	writeFile(t, filepath.Join(listed, "cluster.yaml"), fmt.Sprintf("podCIDRs: [10.244.0.0/16]\nnodes:\n- {name: n0, peerID: %s, podCIDRs: [10.244.0.0/24]}\n", id))
	secret := t.TempDir()
	secrets := secretFile(t, filepath.Join(secret, "join-secret"), "right")
	for what, r := range map[string]*running{"a list": runRelay(t, listed), "a secret": runRelayWith(t, secret, "joinSecretFile: "+filepath.Join(secret, "join-secret")+"\n")} {
		n := joinerWithKey(t, r.info, secrets, key)
		n.Show(raw)
		fair.Eventually(t, deadline, what+": served", reserved(n))
	}
}

// A relay that read a membership and is to pin a key serves its members on: before there is a key, and until a statement says something
// about them. An agent of an earlier release shows none.
func TestFormerMembersAreServed(t *testing.T) {
	t.Parallel()
	dir, s := t.TempDir(), newSigning(t)
	key, id := keytest.New(t)
	_, other := keytest.New(t)
	writeFile(t, filepath.Join(dir, "cluster.yaml"), fmt.Sprintf("podCIDRs: [10.244.0.0/16]\nnodes:\n- {name: a, peerID: %s, podCIDRs: [10.244.1.0/24]}\n- {name: b, peerID: %s, podCIDRs: [10.244.2.0/24]}\n", id, other))
	r := runRelay(t, dir)
	r.logs("membership applied")
	r.stop()
	file := filepath.Join(dir, "signer")
	serves := func(members int) *running {
		t.Helper()
		r := runRelayWith(t, dir, "signersFile: "+file+"\n")
		fair.Eventually(t, deadline, "members are known", fair.True(func() bool { return r.status().Members == members }))
		return r
	}
	r = serves(2)
	writeFile(t, file, s.self.String())
	r.logs("signersFile has other keys")
	if code := r.stop(); code != 0 {
		t.Errorf("it ends with %d", code)
	}
	serves(2).stop()
	r = serves(2) // once more: nothing is lost
	n := joinerWithKey(t, r.info, nil, key)
	fair.Eventually(t, deadline, "a is served without a statement", reserved(n))
	foreign := newSigning(t) // whose key this relay does not pin
	theirs, _ := foreign.sign(member("z", other, 7, 2))
	another := signed.NewBook([]peer.ID{foreign.self})
	if _, err := another.Add(theirs); err != nil {
		t.Fatal(err)
	}
	x := carrying(t, n, another)
	fair.Eventually(t, deadline, "the relay lacks what another key has signed", fair.True(func() bool {
		_, lacks, some, _ := x.Behind(r.info.ID)
		return lacks == 1 && some[0] == "z"
	}))
	gone := member("b", other, 7, 2)
	gone.Expires = gone.Epoch
	left, _ := s.sign(gone)
	book := signed.NewBook([]peer.ID{s.self})
	if _, err := book.Add(left); err != nil {
		t.Fatal(err)
	}
	carrying(t, n, book)
	fair.Eventually(t, deadline, "b is gone", fair.True(func() bool { return r.status().Members == 1 }))
	fair.Eventually(t, deadline, "it is heard from a", fair.True(func() bool {
		m := r.status().Membership
		return m.Heard != nil && m.From == "a"
	}))
	r.stop()
	r = serves(1)
	// Once the key has signed for more than a day, whom it has not signed is not a member ten minutes later.
	n = joinerWithKey(t, r.info, nil, key)
	fair.Eventually(t, deadline, "a is served", reserved(n))
	_, c := keytest.New(t)
	later, _ := s.sign(member("c", c, gone.Epoch+25*3600, 3))
	if _, err := book.Add(later); err != nil {
		t.Fatal(err)
	}
	carrying(t, n, book)
	fair.Eventually(t, deadline, "c is known", fair.True(func() bool { return r.status().Members == 2 }))
	r.stop()
	serves(2)
}

// A member that passes on 10,000 statements of one delegate's stolen key shuts nobody out, and a
// ban of that key ends them all.
func TestStatementsOfAStolenDelegate(t *testing.T) {
	t.Parallel()
	s, stolen := newSigning(t), newSigning(t)
	r, book := s.relay(t.TempDir()), signed.NewBook([]peer.ID{s.self})
	joins := func(name string, third int) *p2p.Node {
		t.Helper()
		key, id := keytest.New(t)
		text, raw := s.sign(member(name, id, 5, third))
		if _, err := book.Add(text); err != nil {
			t.Fatal(err)
		}
		n := joinerWithKey(t, r.info, nil, key)
		n.Show(raw)
		fair.Eventually(t, deadline, name+" is served", reserved(n))
		return n
	}
	honest, hostile := joins("honest", 1), joins("hostile", 2)
	const many = 10_000
	grant, _ := s.sign(signed.Statement{Kind: signed.Delegation, ID: stolen.self, Epoch: 5, Expires: 1 << 40, Blocks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	all := []string{grant}
	for i := range many {
		_, id := keytest.New(t)
		x, err := signed.Sign(member(fmt.Sprint("x", i), id, 5, i%256), stolen.key)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x.String())
	}
	if n, err := book.Add(all...); n != len(all) || err != nil {
		t.Fatal(n, err)
	}
	knows := func(n int) func() error { return fair.True(func() bool { return r.status().Members == n }) }
	carrying(t, hostile, book)
	fair.Eventually(t, time.Minute, "the relay has them", knows(many+2))
	joins("late", 3)
	ban, _ := s.sign(signed.Statement{Kind: signed.Ban, ID: stolen.self, Epoch: 6})
	if _, err := book.Add(ban); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, time.Minute, "the ban ends them", knows(3))
	if !honest.Status().Relays[0].Reserved {
		t.Error("a member was shut out")
	}
}
