package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
)

// What the operator signs for cluster.yaml is what a node that pins the key lets count, and each mistake names what to change.
func TestMembership(t *testing.T) {
	dir := t.TempDir()
	key, cluster := filepath.Join(dir, "signer.key"), filepath.Join(dir, "cluster.yaml")
	run := func(want string, args ...string) string {
		t.Helper()
		_, out, errOut := command(t, append([]string{"membership"}, args...)...)
		if !strings.Contains(out+errOut, want) {
			t.Errorf("%v: no %q in %q", args, want, out+errOut)
		}
		return strings.TrimSpace(out)
	}
	id := run("12D3KooW", "key", key)
	if again := run("12D3KooW", "key", key); again != id {
		t.Errorf("the key of the same file is %s, and then %s", id, again)
	}
	_, out, _ := command(t, "id", "--state-dir", filepath.Join(dir, "a"))
	node := strings.TrimSpace(out)
	text := "podCIDRs: [10.244.0.0/16]\nnodes:\n- {name: a, peerID: " + node + ", podCIDRs: [10.244.1.0/24]}\n"
	if err := os.WriteFile(cluster, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run("1 signed", "sign", "--key", key, "--membership", cluster)
	run("0 signed", "sign", "--key", key, "--membership", cluster)
	run("until 2030-01-01", "sign", "--key", key, "--membership", cluster, "--renew", "--expires", "2029-12-31")
	run("ban b", "ban", "b", "--force", "--key", key, "--membership", cluster)
	run("delegation "+node+" 10.244.0.0/17", "delegate", node, "--range", "10.244.0.0/17", "--until", "2030-12-31", "--key", key, "--membership", cluster)
	run("member a "+node, "show", cluster+".signed")
	signer, err := signed.ParseSigner(id)
	if err != nil {
		t.Fatal(err)
	}
	book := signed.NewBook([]peer.ID{signer})
	texts, err := signed.ReadFile(cluster + ".signed")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := book.Add(append(texts, run("", "sign", "--key", key, "--name", "c", "--peer-id", node, "--pod-cidr", "10.244.2.0/24"))...); n != 4 || err != nil {
		t.Errorf("%d of 4 statements count: %v", n, err)
	}
	if s, bad := book.Apply(mesh.State{Nodes: []mesh.Node{{Name: "a", PeerID: mesh.PeerID(node)}, {Name: "x"}}}, ""); len(s.Nodes) != 0 || len(bad) != 3 {
		t.Errorf("%v, %v", s.Nodes, bad) // outside of the ranges, of which there are none here
	}

	shops, err := signed.ParseSigner(run("12D3KooW", "key", key, "--cluster", "shops"))
	if err != nil || shops == signer {
		t.Errorf("the key for a cluster: %s, %v", shops, err)
	}
	if x, err := signed.Read(run("", "ban", "a", "--key", key, "--cluster", "shops")); err != nil || x.Signer != shops {
		t.Errorf("signed for a cluster by %s: %v", x.Signer, err)
	}

	for _, mistake := range []struct {
		want string
		args []string
	}{
		{"--key FILE is missing", []string{"sign"}},
		{"--key: open " + filepath.Join(dir, "none"), []string{"ban", "a", "--key", filepath.Join(dir, "none")}},
		{cluster + ": not a signing key", []string{"ban", "a", "--key", cluster}},
		{"--membership cluster.yaml", []string{"sign", "--key", key}},
		{`--expires "soon" is no day`, []string{"sign", "--key", key, "--membership", cluster, "--expires", "soon"}},
		{"--until is missing", []string{"delegate", node, "--key", key, "--range", "10.0.0.0/8"}},
		{`--range "10.0.0.1/8" is not`, []string{"delegate", node, "--key", key, "--range", "10.0.0.1/8", "--until", "2030-01-01"}},
		{`"edge 1" is not a node name`, []string{"ban", "edge 1", "--key", key}},
		{cluster + ": statement 1", []string{"show", cluster}},
	} {
		code, _, errOut := command(t, append([]string{"membership"}, mistake.args...)...)
		if code != 2 || !strings.Contains(errOut, mistake.want) {
			t.Errorf("%v: exit code %d, %s", mistake.args, code, errOut)
		}
	}
}
