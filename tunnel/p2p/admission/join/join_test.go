package join_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"

	"edgemesh/internal/keytest"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/refusals"
)

const (
	deadline = 20 * time.Second
	// secretService is what only members may use.
	secretService protocol.ID = "/test/secret/1"
)

// relay is a host behind a gate.
type relay struct {
	host.Host
	gate *gate.Gate
	log  *lines
	book *refusals.Book
}

// lines collects a log.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// gater leaves incoming connections to the gate.
type gater struct{ connmgr.ConnectionGater }

func (gater) InterceptAccept(network.ConnMultiaddrs) bool { return true }
func (gater) InterceptSecured(network.Direction, peer.ID, network.ConnMultiaddrs) bool {
	return true
}
func (gater) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }

func newRelay(t *testing.T, secrets ...join.Secret) *relay {
	t.Helper()
	return newRelayFor(t, 0, secrets...)
}

// newRelayFor admits so many connections by proofs.
func newRelayFor(t *testing.T, proved int, secrets ...join.Secret) *relay {
	t.Helper()
	key, _ := keytest.New(t)
	r := &relay{log: &lines{}}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	r.book = refusals.New(log, nil)
	rm, err := identity.ResourceManager(identity.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	r.gate = gate.New(rm, gate.Config{Handshakes: 1000, Proved: proved, IsMember: func(peer.ID) bool { return false }, Refused: r.book.Refuse,
		Policy: gate.Secret(secrets, func(peer.ID) gate.Ruling { return gate.MayWait })})
	r.Host, err = libp2p.New(libp2p.Identity(key), libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"),
		libp2p.Transport(tcp.NewTCPTransport), libp2p.Transport(libp2pquic.NewTransport),
		libp2p.Security(libp2ptls.ID, identity.NewTLS), libp2p.Security(noise.ID, noise.New), libp2p.Muxer(mux.ID, identity.RelayMuxer()),
		libp2p.ConnectionGater(gater{}), libp2p.ResourceManager(r.gate), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	r.SetStreamHandler(identity.JoinProtocol, r.gate.ServeJoin)
	r.SetStreamHandler(secretService, func(s network.Stream) {
		_, _ = s.Write([]byte("for members"))
		s.Close()
	})
	r.gate.Follow(r.Network())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.gate.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

func (r *relay) count(reason string) uint64 { return r.book.Counts()[reason] }

// node is a host that connects to relays.
type node struct {
	host.Host
	t *testing.T
}

func newNode(t *testing.T, security ...libp2p.Option) node {
	t.Helper()
	key, _ := keytest.New(t)
	if security == nil {
		security = []libp2p.Option{libp2p.Security(libp2ptls.ID, identity.NewTLS)}
	}
	h, err := libp2p.New(append(security, libp2p.Identity(key), libp2p.NoListenAddrs, libp2p.Transport(tcp.NewTCPTransport),
		libp2p.Transport(libp2pquic.NewTransport), libp2p.Muxer(mux.ID, identity.Muxer()), libp2p.DisableMetrics())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return node{h, t}
}

func (n node) ctx() context.Context {
	ctx, cancel := fair.WithTimeout(context.Background(), deadline)
	n.t.Cleanup(cancel)
	return ctx
}

// connect returns a connection to r over "tcp" or "udp".
func (n node) connect(r *relay, over string) network.Conn {
	n.t.Helper()
	n.Peerstore().ClearAddrs(r.ID())
	for _, a := range r.Network().ListenAddresses() {
		if strings.Contains(a.String(), "/"+over+"/") {
			n.Peerstore().AddAddr(r.ID(), a, time.Hour)
		}
	}
	c, err := n.Network().DialPeer(n.ctx(), r.ID()) // Connect would wait for identify, and so for the proof
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// use reads what the relay gives to members.
func (n node) use(c network.Conn) (string, error) {
	s, err := conns.Open(n.ctx(), c, secretService)
	if err != nil {
		return "", err
	}
	defer func() { _ = s.Reset() }()
	b, err := io.ReadAll(s)
	return string(b), err
}

// A node for whose address there is no connection left is not admitted by a right proof, and the relay's operator reads why.
func TestFullRelay(t *testing.T) {
	r := newRelayFor(t, 1, join.SecretN(1))
	var admitted []bool
	for range 2 {
		n := newNode(t)
		p := join.NewProver([]join.Secret{join.SecretN(1)}, slog.New(slog.DiscardHandler))
		p.Prove(n.ctx(), n.connect(r, "tcp"))
		admitted = append(admitted, r.gate.Admits(n.ID()))
	}
	if !admitted[0] || admitted[1] || r.count(refusals.Connections) != 1 || r.count(refusals.WrongSecret) != 0 {
		t.Errorf("admitted %v, refused %v", admitted, r.book.Counts())
	}
}

func TestMemberIsAdmitted(t *testing.T) {
	for _, over := range []string{"tcp", "udp"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			r, n := newRelay(t, join.SecretN(1), join.SecretN(2)), newNode(t)
			c := n.connect(r, over)
			first := make(chan string, 1) // a stream that is opened before the proof waits for it
			go func() {
				got, err := n.use(c)
				first <- got
				if err != nil {
					t.Error(err)
				}
			}()
			if r.gate.Admits(n.ID()) {
				t.Error("admitted before the proof")
			}
			p := join.NewProver([]join.Secret{join.SecretN(3), join.SecretN(2)}, slog.New(slog.DiscardHandler))
			p.Prove(n.ctx(), c)
			if err := p.Refusal(r.ID()); err != nil {
				t.Fatal(err)
			}
			if got := <-first; got != "for members" {
				t.Errorf("the first stream got %q", got)
			}
			if !r.gate.Admits(n.ID()) || r.gate.Proved() != 1 {
				t.Error("not admitted")
			}
			if err := n.Network().ClosePeer(r.ID()); err != nil {
				t.Fatal(err)
			}
			fair.Eventually(t, deadline, "the peer that left is not in", fair.True(func() bool { return r.gate.Proved() == 0 }))
		})
	}
}

// Without the secret a peer gets nothing, learns nothing, and is disconnected; the log says so once.
func TestStrangerIsRefused(t *testing.T) {
	for _, over := range []string{"tcp", "udp"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			r := newRelay(t, join.SecretN(1))
			silent, wrong := newNode(t), newNode(t)
			c := silent.connect(r, over)
			if got, err := silent.use(c); err == nil {
				t.Errorf("a peer that proved nothing got %q", got)
			}
			fair.Eventually(t, deadline, "the silent peer is disconnected", fair.True(c.IsClosed))
			if protos, _ := silent.Peerstore().GetProtocols(r.ID()); len(protos) > 0 {
				t.Errorf("a stranger learned %v", protos)
			}
			log := &lines{}
			p := join.NewProver([]join.Secret{join.SecretN(2)}, slog.New(slog.NewTextHandler(log, nil)))
			for range 3 {
				c := wrong.connect(r, over)
				p.Prove(wrong.ctx(), c)
				if err := p.Refusal(r.ID()); !errors.Is(err, join.ErrWrongSecret) {
					t.Fatalf("refusal %v, want %v", err, join.ErrWrongSecret)
				}
				if got, err := wrong.use(c); err == nil {
					t.Errorf("a peer with another secret got %q", got)
				}
				fair.Eventually(t, deadline, "the peer with another secret is disconnected", fair.True(c.IsClosed))
				fair.Eventually(t, deadline, "its own side knows", fair.True(func() bool { return len(wrong.Network().ConnsToPeer(r.ID())) == 0 }))
			}
			for reason, p := range map[string]peer.ID{refusals.WrongSecret: wrong.ID(), refusals.NoSecret: silent.ID()} {
				if n := strings.Count(r.log.String(), fmt.Sprintf("reason=%q peer=%s from=/ip4/127.0.0.1/%s/", reason, p, over)); n != 1 {
					t.Errorf("the relay logged %q %d times, want once:\n%s", reason, n, r.log)
				}
			}
			if n := strings.Count(log.String(), "joinSecretFile"); n != 1 {
				t.Errorf("the node logged the failure %d times, want once:\n%s", n, log)
			}
			if r.count(refusals.WrongSecret) != 3 || r.count(refusals.NoSecret) != 1 || r.gate.Proved() != 0 {
				t.Errorf("counted %v", r.book.Counts())
			}
		})
	}
}

// answer is a peer that is given proofs by another peer: it sends what make returns.
func answer(n node, c network.Conn, make func(challenge [transcript.ChallengeLen]byte) []byte) (verdict byte, err error) {
	s, err := conns.Open(n.ctx(), c, identity.JoinProtocol)
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Reset() }()
	var challenge [transcript.ChallengeLen]byte
	if _, err := io.ReadFull(s, challenge[:]); err != nil {
		return 0, err
	}
	if _, err := s.Write(make(challenge)); err != nil {
		return 0, err
	}
	var v [1]byte
	_, err = io.ReadFull(s, v[:])
	return v[0], err
}

// A proof that was seen or obtained elsewhere opens no door. The control is the same code with the right binding.
func TestProofCannotBeCarriedOver(t *testing.T) {
	r, member, thief := newRelay(t, join.SecretN(1)), newNode(t), newNode(t)
	mc, tc := member.connect(r, "tcp"), thief.connect(r, "tcp")
	onMembers, err := transcript.ForProver(mc, identity.JoinProtocol)
	if err != nil {
		t.Fatal(err)
	}
	onThiefs, err := transcript.ForProver(tc, identity.JoinProtocol)
	if err != nil {
		t.Fatal(err)
	}
	ms, ts := onMembers.Session, onThiefs.Session
	if ms == ts {
		t.Fatal("two connections have the same session")
	}
	proving := func(x transcript.Transcript) func([transcript.ChallengeLen]byte) []byte {
		return func(challenge [transcript.ChallengeLen]byte) []byte {
			x.Protocol, x.Challenge = identity.JoinProtocol, challenge
			return join.Forge(x, join.SecretN(1))
		}
	}
	for name, x := range map[string]transcript.Transcript{
		"made by a member for itself, on its session": {Verifier: r.ID(), Prover: member.ID(), Session: ms},
		"for the thief, on another session":           {Verifier: r.ID(), Prover: thief.ID(), Session: ms},
		"for another relay":                           {Verifier: member.ID(), Prover: thief.ID(), Session: ts},
		"for another member, on this session":         {Verifier: r.ID(), Prover: member.ID(), Session: ts},
	} {
		if v, err := answer(thief, tc, proving(x)); err != nil || v != join.WrongSecretVerdict {
			t.Errorf("%s: verdict %d, %v; want %d", name, v, err, join.WrongSecretVerdict)
		}
	}
	var old []byte
	if v, err := answer(member, mc, func(challenge [transcript.ChallengeLen]byte) []byte {
		onMembers.Challenge = challenge
		old = join.Forge(onMembers, join.SecretN(1))
		return old
	}); err != nil || v != join.Accepted {
		t.Errorf("the member itself: verdict %d, %v; want %d", v, err, join.Accepted)
	}
	if v, err := answer(member, mc, func([transcript.ChallengeLen]byte) []byte { return old }); err != nil || v != join.WrongSecretVerdict {
		t.Errorf("the same proof again: verdict %d, %v; want %d", v, err, join.WrongSecretVerdict)
	}
	for _, broken := range [][]byte{{0}, {3, 1, 2}, {255}} {
		if _, err := answer(thief, tc, func([transcript.ChallengeLen]byte) []byte { return broken }); err == nil {
			t.Errorf("message %v got a verdict", broken)
		}
	}
}

// go-libp2p's Noise has nothing to bind a proof to: the member gives none out.
func TestNoProofOverNoise(t *testing.T) {
	r, n := newRelay(t, join.SecretN(1)), newNode(t, libp2p.Security(noise.ID, noise.New))
	c := n.connect(r, "tcp")
	p := join.NewProver([]join.Secret{join.SecretN(1)}, slog.New(slog.DiscardHandler))
	p.Prove(n.ctx(), c)
	if err := p.Refusal(r.ID()); !errors.Is(err, transcript.ErrNoSession) || r.gate.Admits(n.ID()) {
		t.Errorf("refusal %v, admitted %v", err, r.gate.Admits(n.ID()))
	}
}

// While both secrets are accepted nobody is disconnected; who proved the one that is removed has to prove the other.
// A relay refuses a statement in words: one that ends the stream has another source, which may not have this node yet.
func TestRefusedInWords(t *testing.T) {
	r, n := newRelay(t, join.SecretN(1)), newNode(t)
	c := n.connect(r, "tcp")
	join.NewProver([]join.Secret{join.SecretN(1)}, slog.New(slog.DiscardHandler)).Prove(n.ctx(), c)
	p := join.NewProver(nil, slog.New(slog.DiscardHandler))
	p.Show("a statement")
	for _, words := range []error{errors.New("no"), nil} {
		r.SetStreamHandler(identity.MemberProtocol, func(s network.Stream) {
			if _, err := join.ReadShown(s, 400); err == nil && words != nil {
				_ = join.AnswerShown(s, words)
			}
			_ = s.Reset()
		})
		if err := p.Admit(n.ctx(), c); errors.Is(err, join.ErrRefused) != (words != nil) || words == nil && err != nil {
			t.Errorf("%v: %v", words, err)
		}
	}
}

func TestRotation(t *testing.T) {
	r, late, early := newRelay(t, join.SecretN(1)), newNode(t), newNode(t)
	lc := late.connect(r, "tcp")
	join.NewProver([]join.Secret{join.SecretN(1)}, slog.New(slog.DiscardHandler)).Prove(late.ctx(), lc)
	r.gate.SetSecrets([]join.Secret{join.SecretN(2), join.SecretN(1)})
	ec := early.connect(r, "udp")
	join.NewProver([]join.Secret{join.SecretN(2)}, slog.New(slog.DiscardHandler)).Prove(early.ctx(), ec)
	if !r.gate.Admits(late.ID()) || !r.gate.Admits(early.ID()) {
		t.Fatal("with both secrets accepted, both nodes belong in")
	}
	r.gate.SetSecrets([]join.Secret{join.SecretN(2)})
	fair.Eventually(t, deadline, "the node with the removed secret is out", fair.True(func() bool { return !r.gate.Admits(late.ID()) && lc.IsClosed() }))
	if !r.gate.Admits(early.ID()) || ec.IsClosed() {
		t.Error("the node with the new secret was cut off")
	}
}

// Two connections from one UDP socket have one address: both end without a proof.
func TestConnectionsOfOneSocket(t *testing.T) {
	r, n := newRelay(t, join.SecretN(1)), newNode(t)
	for _, a := range r.Network().ListenAddresses() {
		if !strings.Contains(a.String(), "/udp/") {
			continue
		}
		for range 3 {
			c, err := n.Network().(*swarm.Swarm).TransportForDialing(a).Dial(n.ctx(), a, r.ID())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
	}
	addrs := make(map[string]bool)
	fair.Eventually(t, deadline, "the relay has all of them", fair.True(func() bool { return len(r.Network().Conns()) == 3 }))
	for _, c := range r.Network().Conns() {
		addrs[c.RemoteMultiaddr().String()] = true
	}
	if len(addrs) != 1 {
		t.Fatalf("they come from %d addresses, so this shows nothing", len(addrs))
	}
	fair.Eventually(t, deadline, "all are closed", fair.True(func() bool { return len(r.Network().Conns()) == 0 }))
	if n := r.count(refusals.NoSecret); n != 3 {
		t.Errorf("%d refusals counted, want 3", n)
	}
}

func TestWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "join-secret")
	write := func(content string, mode os.FileMode) {
		t.Helper()
		tmp := path + ".new"
		if err := os.WriteFile(tmp, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, path); err != nil {
			t.Fatal(err)
		}
	}
	write(join.SecretN(1).Text(), 0o600)
	first, err := join.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	changed, failed := make(chan []join.Secret, 10), make(chan error, 10)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		join.Watch(ctx, path, first, func(s []join.Secret) { changed <- s }, func(err error) { failed <- err })
	})
	defer wg.Wait()
	defer cancel()
	write(join.SecretN(2).Text()+"\n"+join.SecretN(1).Text(), 0o600)
	if s := <-changed; len(s) != 2 || s[0] != join.SecretN(2) {
		t.Errorf("%d secrets", len(s))
	}
	write(join.SecretN(2).Text(), 0o644)
	if err := <-failed; !errors.Is(err, join.ErrPermissions) {
		t.Error(err)
	}
	write(join.SecretN(2).Text(), 0o600)
	if s := <-changed; len(s) != 1 || len(failed) != 0 {
		t.Errorf("%d secrets, %d failures", len(s), len(failed))
	}
}
