package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	manet "github.com/multiformats/go-multiaddr/net"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/keytest"
	"edgemesh/internal/wake"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// secretFile writes secrets where agents and relays read them, and returns them.
func secretFile(t *testing.T, path string, names ...string) []join.Secret {
	t.Helper()
	var text string
	for _, name := range names {
		text += name + strings.Repeat("-", 32) + "\n"
	}
	writeFile(t, path, text)
	secrets, err := join.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return secrets
}

// joiner is an agent's end of connections, which knows the relay and proves these secrets.
func joiner(t *testing.T, relay peer.AddrInfo, secrets []join.Secret) *p2p.Node {
	t.Helper()
	key, _ := keytest.New(t)
	return joinerWithKey(t, relay, secrets, key)
}

func joinerWithKey(t *testing.T, relay peer.AddrInfo, secrets []join.Secret, key crypto.PrivKey) *p2p.Node {
	t.Helper()
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	n, err := p2p.New(p2p.Config{Key: key, Listen: multiaddrs("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"),
		JoinSecrets: secrets, Log: slog.New(slog.NewTextHandler(t.Output(), nil)).With("node", self.String()[46:]),
		Membership: members.Membership{Members: []members.Member{{Name: "self", ID: self}}, Relays: []peer.AddrInfo{relay},
			ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func reserved(n *p2p.Node) func() error {
	return func() error {
		if st := n.Status().Relays[0]; !st.Reserved {
			return fmt.Errorf("%+v", st)
		}
		return nil
	}
}

// A relay that knows no members serves those who prove the secret, and nobody else; a rotated secret cuts off who knows
// only the old one.
func TestJoinSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "join-secret")
	old := secretFile(t, path, "old")
	r := runRelayWith(t, dir, "joinSecretFile: "+path+"\n")
	knows := joiner(t, r.info, old)
	wrong := joiner(t, r.info, secretFile(t, filepath.Join(dir, "wrong"), "wrong"))
	none := joiner(t, r.info, nil)
	fair.Eventually(t, deadline, "who knows the secret is served", reserved(knows))
	fair.Eventually(t, deadline, "who has another secret reads why it is not", func() error {
		if st := wrong.Status().Relays[0]; st.Reserved || !strings.Contains(st.Error, "join secret") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	fair.Eventually(t, deadline, "who has none is refused", fair.True(func() bool {
		_, text := r.get("/metrics")
		return strings.Contains(text, `edgemesh_relay_refused_total{reason="no_join_secret"}`)
	}))
	_, text := r.get("/metrics")
	for _, want := range []string{"edgemesh_relay_joined_peers 1\n", "edgemesh_relay_reservations 1\n", `edgemesh_relay_refused_total{reason="wrong_join_secret"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	if st := none.Status().Relays[0]; st.Reserved {
		t.Errorf("a node without the secret is served: %+v", st)
	}

	both := secretFile(t, path, "new", "old")
	r.logs("join secret changed")
	fresh := joiner(t, r.info, both[:1])
	fair.Eventually(t, deadline, "who knows the new secret is served", reserved(fresh))
	if err := reserved(knows)(); err != nil {
		t.Errorf("a second secret cut off who knows the first: %v", err)
	}
	secretFile(t, path, "new")
	fair.Eventually(t, deadline, "who knows only the old secret is out", fair.True(func() bool { return reserved(knows)() != nil }))
	knows.SetJoinSecrets(both[:1])
	fair.Eventually(t, deadline, "and is served again with the new one", reserved(knows))
	writeFile(t, path, "hunter2")
	r.logs("relay.yaml: joinSecretFile: " + path + ": not a join secret")
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A relay with a join secret reads from a file whom it refuses all the same, also after a restart without that file. The
// control is the same node before it is banned, and another one afterwards.
func TestJoinSecretBanned(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "join-secret")
	secrets := secretFile(t, path, "known")
	writeFile(t, filepath.Join(dir, "cluster.yaml"), "podCIDRs: [10.244.0.0/16]\n")
	lines := fmt.Sprintf("joinSecretFile: %s\nmembership: {file: %s/cluster.yaml}\n", path, dir)
	r := runRelayWith(t, dir, lines)
	key, _ := keytest.New(t)
	stolen, other := joinerWithKey(t, r.info, secrets, key), joiner(t, r.info, secrets)
	fair.Eventually(t, deadline, "before, it is served", reserved(stolen))
	fair.Eventually(t, deadline, "so is another one", reserved(other))
	start := time.Now()
	r.write(fmt.Sprintf("podCIDRs: [10.244.0.0/16]\nbanned: [%s, edge-9]\n", stolen.ID()))
	fair.Eventually(t, cutOff, "it is cut off", fair.True(func() bool { return reserved(stolen)() != nil }))
	t.Logf("cut off %v after the file was written", time.Since(start).Round(time.Millisecond))
	r.logs("knows no node of that name")
	fair.Eventually(t, deadline, "its attempts are refused", fair.True(func() bool {
		_, text := r.get("/metrics")
		return strings.Contains(text, `edgemesh_relay_refused_total{reason="banned"}`) && strings.Contains(text, "edgemesh_relay_joined_peers 1\n")
	}))
	if err := reserved(other)(); err != nil {
		t.Errorf("the other node: %v", err)
	}
	r.stop()
	if err := os.Remove(filepath.Join(dir, "cluster.yaml")); err != nil {
		t.Fatal(err)
	}
	again := runRelayWith(t, dir, lines)
	again.logs("starting from the snapshot")
	late := joiner(t, again.info, secrets)
	fair.Eventually(t, deadline, "another node is served after the restart", reserved(late))
	banned := joinerWithKey(t, again.info, secrets, key)
	fair.Eventually(t, deadline, "the banned one is refused after the restart", fair.True(func() bool {
		_, text := again.get("/metrics")
		return strings.Contains(text, `edgemesh_relay_refused_total{reason="banned"}`)
	}))
	if err := reserved(banned)(); err == nil {
		t.Error("the banned node is served after a restart without the file")
	}
}

// handshake connects a stranger with a key of its own, which says nothing more.
func handshake(ctx context.Context, r *running, from net.IP) (sec.SecureConn, error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, err
	}
	_, at, err := manet.DialArgs(r.info.Addrs[0])
	if err != nil {
		return nil, err
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	c, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	tls, err := identity.NewTLS(libp2ptls.ID, key, []upgrader.StreamMuxer{{ID: mux.ID, Muxer: identity.Muxer()}})
	if err == nil {
		err = mss.SelectProtoOrFail(libp2ptls.ID, c)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	s, err := tls.SecureOutbound(ctx, c, r.info.ID)
	if err != nil {
		c.Close()
	}
	return s, err
}

// throng has strangers from so many hosts in turns keep n connections with finished handshakes, or try, until the test ends.
func throng(t *testing.T, r *running, n, hosts int) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				if s, err := handshake(ctx, r, attacker(i%hosts)); err == nil {
					stop := context.AfterFunc(ctx, func() { s.Close() })
					_, _ = io.Copy(io.Discard, s)
					stop()
					s.Close()
				}
				wake.Sleep(ctx, time.Second)
			}
		})
	}
}

// Strangers whose handshakes are over take the slots of those who have not proved the secret yet, or shown a statement, at a relay that
// has seen nobody before. A member is let in all the same.
func TestStrangersShutNoNewMemberOut(t *testing.T) {
	const many = 800
	dir := t.TempDir()
	path := filepath.Join(dir, "join-secret")
	secrets := secretFile(t, path, "known")
	s := newSigning(t)
	key, id := keytest.New(t)
	_, raw := s.sign(member("a", id, 5, 1))
	for _, x := range []struct {
		hosts       int
		lines, full string
	}{
		{1, "joinSecretFile: " + path + "\n", "too many without the join secret"}, {manyHosts, "joinSecretFile: " + path + "\n", "too many without the join secret"},
		{1, fmt.Sprintf("signers: [%s]\n", s.self), "too many strangers"}, {manyHosts, fmt.Sprintf("signers: [%s]\n", s.self), "too many strangers"},
	} {
		t.Run(fmt.Sprint(x.hosts, " hosts, ", x.full), func(t *testing.T) {
			r := runRelayWith(t, t.TempDir(), x.lines)
			throng(t, r, many, x.hosts)
			// No promise of the relay's: hundreds of handshakes of this process, at both ends.
			fair.Eventually(t, 3*deadline, "strangers have all the slots that they get", fair.True(func() bool {
				return refusedBy(r, x.full)() == nil && strings.Contains(r.log.String(), fmt.Sprintf("reason=%q peer=12D3", x.full))
			}))
			start := time.Now()
			n := joinerWithKey(t, r.info, secrets, key)
			n.Show(raw)
			// Strangers come again as long as this lasts; their handshakes, in this process, take the member's time.
			fair.Eventually(t, deadline, "a member is let in", reserved(n))
			t.Logf("a member is served after %v", time.Since(start).Round(time.Millisecond))
		})
	}
}

// The control: a stranger has its time where nobody else wants it, and no more.
func TestStrangerHasItsTime(t *testing.T) {
	t.Parallel()
	const itsTime = 5 * time.Second
	dir := t.TempDir()
	path := filepath.Join(dir, "join-secret")
	secretFile(t, path, "known")
	r := runRelayWith(t, dir, "joinSecretFile: "+path+"\n")
	ctx, cancel := fair.WithTimeout(t.Context(), deadline)
	defer cancel()
	start := time.Now()
	s, err := handshake(ctx, r, attacker(0))
	if err != nil {
		t.Fatal(err)
	}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	_, _ = io.Copy(io.Discard, s)
	if took := time.Since(start); ctx.Err() != nil || took < itsTime {
		t.Errorf("closed after %v, %v; want %v", took, ctx.Err(), itsTime)
	}
	r.logs(`reason="no join secret" peer=12D3`)
}
