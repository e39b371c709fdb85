package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/join"
	"edgemesh/tunnel/p2p/members"
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
		return strings.Contains(text, `edgemesh_relay_refused_total{reason="no join secret"}`)
	}))
	_, text := r.get("/metrics")
	for _, want := range []string{"edgemesh_relay_joined_peers 1\n", "edgemesh_relay_reservations 1\n", `edgemesh_relay_refused_total{reason="wrong join secret"}`} {
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
	fair.Eventually(t, deadline, "it is cut off", fair.True(func() bool { return reserved(stolen)() != nil }))
	t.Logf("cut off %v after the file was written", time.Since(start).Round(time.Millisecond))
	r.logs("knows no node of that name")
	fair.Eventually(t, deadline, "it knocks without success", fair.True(func() bool {
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
