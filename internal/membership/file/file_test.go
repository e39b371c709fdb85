package file

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
)

// Peer IDs of keys nobody has kept.
const (
	idA = "12D3KooWGaSyckNdJm5hHzDYFHFjXhK2YJSs8PYoaW6SVVLSNDgM"
	idB = "12D3KooWRbGQcWmvuwWUEVW1UaeEVumEWWHATuJQ9cgiXJLRttp7"
	idC = "12D3KooWDYKyPzHqzyk7HmVJ13vFACvPrqaLv5HHtdvMxMHbCuqf"
	idD = "12D3KooWM3RDfsz3FQ5rhyU3LFvNVSy8r7CxMThRHGXkMfFTEoBf"
)

func clusterYAML() string {
	return strings.NewReplacer("$A", idA, "$B", idB, "$C", idC, "$D", idD).Replace(`podCIDRs: [10.244.0.0/16, "fd00:10:244::/56"]
relays:
  - /ip4/5.5.5.5/tcp/4470/p2p/$C
  - /dns4/relay.example.org/tcp/4470/p2p/$D
  - /ip4/5.5.5.5/udp/4470/quic-v1/p2p/$C
wanCIDRs: [172.20.0.0/16]
encryption: always
hostAccess: nodes
hostPorts: [53/udp, 53/tcp]
podDenyCIDRs: [169.254.169.254/32, 10.0.0.0/8]
banned: [$D, stolen-7]
observers: [edge-1, $D]
admitLabel: node-restriction.kubernetes.io/mesh=yes
carrier: {sealed: auto}
nodes:
  - {name: edge-1, peerID: $A, podCIDRs: [10.244.1.0/24, "fd00:10:244:1::/64"]}
  - {name: edge-2, peerID: $B, podCIDRs: [10.244.2.0/24], labels: {node-restriction.kubernetes.io/mesh: "yes"}}
`)
}

func TestParse(t *testing.T) {
	p := netip.MustParsePrefix
	want := mesh.State{
		PodCIDRs:   []netip.Prefix{p("10.244.0.0/16"), p("fd00:10:244::/56")},
		WANCIDRs:   []netip.Prefix{p("172.20.0.0/16")},
		Encryption: mesh.EncryptionAlways,
		Carrier:    mesh.Carrier{Sealed: mesh.SealedAuto},
		Banned:     []string{idD, "stolen-7"},
		Observers:  []string{"edge-1", idD},
		Access: mesh.Access{
			HostAccess: mesh.HostNodes, HostPorts: []mesh.HostPort{{Port: 53, Proto: "udp"}, {Port: 53, Proto: "tcp"}},
			PodDenyCIDRs: []netip.Prefix{p("169.254.169.254/32"), p("10.0.0.0/8")},
		},
		AdmitLabel: "node-restriction.kubernetes.io/mesh=yes",
		Relays: []mesh.Relay{
			{PeerID: idC, Addrs: []string{"/ip4/5.5.5.5/tcp/4470", "/ip4/5.5.5.5/udp/4470/quic-v1"}},
			{PeerID: idD, Addrs: []string{"/dns4/relay.example.org/tcp/4470"}},
		},
		Nodes: []mesh.Node{
			{Name: "edge-1", PeerID: idA, PodCIDRs: []netip.Prefix{p("10.244.1.0/24"), p("fd00:10:244:1::/64")}},
			{Name: "edge-2", PeerID: idB, PodCIDRs: []netip.Prefix{p("10.244.2.0/24")},
				Labels: map[string]string{"node-restriction.kubernetes.io/mesh": "yes"}},
		},
	}
	got, err := parse("", strings.NewReader(clusterYAML()))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseDefaults(t *testing.T) {
	got, err := parse("", strings.NewReader("podCIDRs: [10.244.0.0/16]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Encryption != mesh.EncryptionAuto {
		t.Errorf("encryption %q, want auto", got.Encryption)
	}
	if !reflect.DeepEqual(got.Access, mesh.Access{HostAccess: mesh.HostAll}) {
		t.Errorf("access %+v, want nothing closed", got.Access)
	}
}

func rsaPeerID(t *testing.T) string {
	t.Helper()
	_, pub, err := crypto.GenerateKeyPairWithReader(crypto.RSA, 2048, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

func TestLoadRefuses(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown field", "nodes:", "relay: x\nnodes:", "relay: unknown field"},
		{"unknown node field", "peerID: " + idA, "peerId: " + idA, "nodes[0].peerId: unknown field; did you mean peerID?"},
		{"torn", `, podCIDRs: [10.244.2.0/24], labels: {node-restriction.kubernetes.io/mesh: "yes"}}`, ", podCI", "not valid YAML"},
		{"bad prefix", "10.244.2.0/24", "10.244.2.0", `nodes[1].podCIDRs[0]: "10.244.2.0" is not a prefix`},
		{"leading zero", "10.244.2.0/24", "10.244.02.0/24", "nodes[1].podCIDRs[0]: "},
		{"zone", "fd00:10:244:1::/64", "fe80::%eth0/64", "nodes[0].podCIDRs[1]: "},
		{"unmasked", "10.244.2.0/24", "10.244.2.1/24", "nodes[1].podCIDRs[0]: 10.244.2.1/24 has bits set"},
		{"mapped", "10.244.2.0/24", `"::ffff:10.244.2.0/120"`, "nodes[1].podCIDRs[0]: ::ffff:10.244.2.0/120 is an IPv4-mapped prefix"},
		{"overlap", "10.244.2.0/24", "10.244.1.0/24", `nodes[1].podCIDRs[0]: 10.244.1.0/24 of node "edge-2" overlaps 10.244.1.0/24 of node "edge-1"`},
		{"same peer", idB, idA, `nodes[1].peerID: ` + idA + ` of node "edge-2" is also the peer ID of node "edge-1"`},
		{"same name", "edge-2", "edge-1", "nodes[1].name: "},
		{"bad peer ID", idB, "12D3KooWx", `nodes[1].peerID: "12D3KooWx" is not a peer ID`},
		{"RSA peer ID", idB, rsaPeerID(t), "is not the peer ID of an Ed25519 key"},
		{"encryption", "encryption: always", "encryption: never", `encryption: "never" is neither`},
		{"banned rubbish", "stolen-7", "Stolen_7", `banned[1]: "Stolen_7" is neither a peer ID`},
		{"host access", "hostAccess: nodes", "hostAccess: some", `hostAccess: "some" is neither "all"`},
		{"host port without protocol", "53/tcp", "dns", `hostPorts[1]: "dns" is not a port and its protocol`},
		{"host port 0", "53/tcp", "0/tcp", `hostPorts[1]: "0/tcp" is not`},
		{"host port of SCTP", "53/tcp", "53/sctp", `hostPorts[1]: "53/sctp" is not`},
		{"host port too large", "53/tcp", "65536/tcp", `hostPorts[1]: "65536/tcp" is not`},
		{"host port, padded", "53/tcp", "053/tcp", `hostPorts[1]: "053/tcp" is not`},
		{"denied rubbish", "169.254.169.254/32", "169.254.169.254", `podDenyCIDRs[0]: "169.254.169.254" is not a prefix`},
		{"denied, unmasked", "10.0.0.0/8", "10.1.0.0/8", "podDenyCIDRs[1]: 10.1.0.0/8 has bits set"},
		{"denied pods", "10.0.0.0/8", "10.244.7.0/24", "podDenyCIDRs[1]: 10.244.7.0/24 is inside podCIDRs[0]"},
		{"a label that a node can give itself", "admitLabel: node-restriction.kubernetes.io/mesh", "admitLabel: edgemesh.io/mesh",
			`admitLabel: "edgemesh.io/mesh=yes" does not begin with node-restriction.kubernetes.io/`},
		{"a node's own label", `{node-restriction.kubernetes.io/mesh: "yes"}`, "{role: edge}", `nodes[1].labels: "role=edge" does not begin with`},
		{"trusted rubbish", "podDenyCIDRs:", "lan: {trusted: [10.1.0.0]}\npodDenyCIDRs:", `lan.trusted[0]: "10.1.0.0" is not a prefix`},
		{"trusted, public", "podDenyCIDRs:", "lan: {trusted: [8.0.0.0/8]}\npodDenyCIDRs:", "lan.trusted[0]: 8.0.0.0/8 is not inside a private range"},
		{"trusted, another key", "podDenyCIDRs:", "lan: {trust: [10.0.0.0/8]}\npodDenyCIDRs:", "lan.trust: unknown field"},
		{"public wan", "172.20.0.0/16", "8.0.0.0/8", "wanCIDRs[0]: 8.0.0.0/8 is not inside a private range"},
		{"relay without peer ID", "/tcp/4470/p2p/" + idD, "/tcp/4470", "relays[1]: /dns4/relay.example.org/tcp/4470 has no peer ID; append /p2p/"},
		{"relay is not a multiaddr", "/dns4/relay", "relay", `relays[1]: "relay`},
		{"relay without transport", "/dns4/relay.example.org/tcp/4470", "", "relays[1]: "},
		{"relay without port", "/dns4/relay.example.org/tcp/4470", "/dns4/relay.example.org", "relays[1]: "},
		{"relay port 0", "relay.example.org/tcp/4470", "relay.example.org/tcp/0", "relays[1]: "},
		{"relay by http", "relay.example.org/tcp/4470", "relay.example.org/tcp/4470/http", "relays[1]: "},
		{"relay behind a relay", "/dns4/relay.example.org/tcp/4470", "/ip4/5.5.5.5/tcp/4470/p2p/" + idC + "/p2p-circuit", "relays[1]: "},
		{"relay in the cluster", "/dns4/relay.example.org/tcp", "/ip4/10.244.7.7/tcp", "relays[1]: 10.244.7.7 is inside podCIDRs[0]"},
		{"relay in the cluster, mapped", "/dns4/relay.example.org/tcp", "/ip6/::ffff:10.244.7.7/tcp", "relays[1]: 10.244.7.7 is inside podCIDRs[0]"},
		{"relay nowhere", "/dns4/relay.example.org/tcp", "/ip4/0.0.0.0/tcp", "relays[1]: 0.0.0.0 cannot be dialed"},
		{"relay address twice", "/dns4/relay.example.org/tcp/4470/p2p/" + idD, "/ip4/5.5.5.5/tcp/4470/p2p/" + idC, "relays[1]: the same address as relays[0]"},
		{"no ranges", `podCIDRs: [10.244.0.0/16, "fd00:10:244::/56"]`, "", "podCIDRs: empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(clusterYAML(), c.old) {
				t.Fatalf("%q is not in the document", c.old)
			}
			path := filepath.Join(t.TempDir(), "cluster.yaml")
			write(t, path, strings.Replace(clusterYAML(), c.old, c.new, 1))
			_, err := Load(path)
			var bad *mesh.Invalid
			if !errors.As(err, &bad) {
				t.Fatalf("error %v, want a *mesh.Invalid", err)
			}
			if len(bad.Problems) != 1 || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got:\n%v\nwant one line with %s: and %q", err, path, c.want)
			}
		})
	}
}

func TestLoadReportsAllTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	write(t, path, strings.NewReplacer(idA, "x", "10.244.2.0/24", "10.244.2", "172.20.0.0/16", "z").Replace(clusterYAML()))
	_, err := Load(path)
	for _, want := range []string{"nodes[0].peerID", "nodes[1].podCIDRs[0]", "wanCIDRs[0]"} {
		if err == nil || !strings.Contains(err.Error(), path+": "+want) {
			t.Errorf("%q is missing from:\n%v", want, err)
		}
	}
}

func TestLoadMissingAndTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want fs.ErrNotExist with the path", err)
	}
	for _, n := range []int{MaxSize, MaxWhole} {
		write(t, path, strings.Repeat("#", n+1))
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s: larger than %d bytes", path, n)) {
			t.Errorf("%d bytes: error %v", n+1, err)
		}
	}
}

func TestLoadManyNodes(t *testing.T) {
	var b strings.Builder
	b.WriteString("podCIDRs: [10.0.0.0/8]\nnodes:\n")
	for i := range 5000 {
		_, id := keytest.New(t)
		fmt.Fprintf(&b, "- {name: n%d, peerID: %s, podCIDRs: [10.%d.%d.0/24]}\n", i, id, i>>8, i&255)
	}
	s, err := parse("", strings.NewReader(b.String()))
	if err != nil || len(s.Nodes) != 5000 {
		t.Errorf("%d nodes, %v", len(s.Nodes), err)
	}
}

func TestStart(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cluster.yaml")
	if _, _, err := Start(path, dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("neither file nor snapshot: error %v", err)
	}
	write(t, path, clusterYAML())
	want, warning, err := Start(path, dir)
	if err != nil || warning != nil || len(want.Nodes) != 2 {
		t.Fatalf("%+v, %v, %v", want, warning, err)
	}
	if err := snapshot.Save(dir, want); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(){
		"broken":  func() { write(t, path, clusterYAML()[:300]) },
		"empty":   func() { write(t, path, "") },
		"missing": func() { os.Remove(path) },
	} {
		spoil()
		got, warning, err := Start(path, dir)
		if err != nil || warning == nil || !strings.Contains(warning.Error(), path) {
			t.Errorf("%s: warning %v, error %v", name, warning, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want the snapshot", name, got)
		}
	}
	write(t, filepath.Join(dir, snapshot.File), "{")
	write(t, path, "")
	if _, _, err := Start(path, dir); !errors.Is(err, snapshot.ErrTorn) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path+": podCIDRs") {
		t.Errorf("both broken: error %v", err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Whatever Parse accepts must be valid, fit for the plan of every node that it admits, and survive
// the snapshot.
func FuzzParse(f *testing.F) {
	f.Add([]byte(clusterYAML()))
	f.Add([]byte("podCIDRs: [10.244.0.0/16]\nnodes: [{name: a, peerID: " + idA + ", podCIDRs: [10.244.0.0/30]}]"))
	f.Add([]byte("podCIDRs: [\"::ffff:1.2.3.0/120\"]"))
	f.Add([]byte("relays: [/p2p/" + idA + "]"))
	f.Add([]byte("podCIDRs: [10.244.0.0/16]\nhostAccess: none\nhostPorts: [53/udp]\npodDenyCIDRs: [10.0.0.0/8, \"::/0\"]"))
	f.Add([]byte("nodes: [null, {}]\n---\n"))
	item := "- {name: a, peerID: " + idA + ", podCIDRs: [10.244.0.0/30, fd00:1::/64], site: berlin}\n"
	f.Add([]byte("podCIDRs: [10.244.0.0/16, fd00::/16]\n# nodes\nnodes:\n" + item + "\n# the end\nbanned:\n- b\n  c\n"))
	f.Add([]byte("banned:\n# x\n  - a\nnodes:\n  " + item + "encryption: always\n  # no\n\n"))
	f.Add([]byte("encryption: auto\n# c\n  b\nnodes:\n" + item + "nodes: null\nrelays: [/p2p/" + idA + "]"))
	for _, s := range []string{
		"podCIDRs: [10.244.0.0/16]\nnodes:\n" + item + "#\x00\n",
		"podCIDRs: [10.244.0.0/16]\nnodes:\n" + item + "# a\rbanned: [b]\n",
		"podCIDRs: [10.244.0.0/16]\nnodes:\n" + item + "# a\u2028banned: [b]\n",
		"banned: [a # ]\nnodes:\n" + item + "] # [\n",
		"banned: [#]\nnodes:\n" + item + "] #[\n",
		"  podCIDRs: [10.244.0.0/16]\nnodes:\n" + item,
	} {
		if _, _, err := parseLines(strings.NewReader(s)); !errors.Is(err, errOtherForm) {
			f.Errorf("%q is read by lines: %v", s, err)
		}
		f.Add([]byte(s))
	}
	with := "# über [alles\npodCIDRs: [10.244.0.0/16] # not [these\nnodes:\n" + item + "#\tthe end ]\n"
	if _, _, err := parseLines(strings.NewReader(with)); err != nil {
		f.Errorf("%q is not read by lines: %v", with, err)
	}
	f.Add([]byte(with))
	f.Fuzz(func(t *testing.T, data []byte) {
		if doc, nodes, err := parseLines(bytes.NewReader(data)); err == nil { // it has to mean the same as YAML
			var bad mesh.Invalid
			want, err := parseWhole(bytes.NewReader(data), &bad)
			if err != nil || bad.Err() != nil {
				t.Fatalf("YAML: %v, %v", err, bad.Err())
			}
			wantNodes := document{Nodes: want.Nodes}.state(&bad).Nodes
			want.Nodes = nil
			if !reflect.DeepEqual(doc, want) || !reflect.DeepEqual(nodes, wantNodes) || bad.Err() != nil {
				t.Fatalf("read by lines: %+v, %+v\nas YAML: %+v, %+v, %v", doc, nodes, want, wantNodes, bad.Err())
			}
		}
		s, err := parse("", bytes.NewReader(data))
		if err != nil {
			var bad *mesh.Invalid
			if !errors.As(err, &bad) {
				t.Fatalf("error is a %T", err)
			}
			return
		}
		if err := s.Validate(); err != nil {
			t.Fatalf("accepted, but: %v", err)
		}
		for _, n := range s.Admitted().Nodes {
			if _, err := mesh.NewPlan(s, n.Name); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A node may have a site.
func TestSite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	text := "podCIDRs: [10.244.0.0/16]\nnodes: [{name: a, site: berlin, peerID: " + idA + ", podCIDRs: [10.244.1.0/24]}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(path)
	if err != nil || s.Nodes[0].Site != "berlin" {
		t.Errorf("%+v, %v", s.Nodes, err)
	}
}
