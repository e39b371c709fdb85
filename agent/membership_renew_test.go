package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/signed"
)

// signerFiles are a cluster.yaml of the nodes a and b, and a key beside it.
type signerFiles struct {
	t            *testing.T
	key, cluster string
	ids          map[string]peer.ID
}

func newSignerFiles(t *testing.T) *signerFiles {
	t.Helper()
	dir := t.TempDir()
	f := &signerFiles{t: t, key: filepath.Join(dir, "signer.key"), cluster: filepath.Join(dir, "cluster.yaml"), ids: map[string]peer.ID{}}
	text := "podCIDRs: [10.244.0.0/16]\nnodes:\n"
	for _, n := range [][2]string{{"a", "10.244.1.0/24"}, {"b", "10.244.2.0/24"}} {
		key, err := signed.NewKey(filepath.Join(dir, n[0]))
		if err != nil {
			t.Fatal(err)
		}
		if f.ids[n[0]], err = peer.IDFromPrivateKey(key); err != nil {
			t.Fatal(err)
		}
		text += "- {name: " + n[0] + ", peerID: " + f.ids[n[0]].String() + ", podCIDRs: [" + n[1] + "]}\n"
	}
	if err := os.WriteFile(f.cluster, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.run(0, "12D3KooW", "key", f.key)
	return f
}

// run runs a command with the files, and wants its exit code and a part of what it writes.
func (f *signerFiles) run(want int, text string, args ...string) {
	f.t.Helper()
	args = append([]string{"membership"}, args...)
	if args[1] != "key" && args[1] != "show" {
		args = append(args, "--key", f.key, "--membership", f.cluster)
	}
	code, out, errOut := command(f.t, args...)
	if code != want || !strings.Contains(out+errOut, text) {
		f.t.Errorf("%v: exit code %d, no %q in %q", args, code, text, out+errOut)
	}
}

// write has the statements beside cluster.yaml signed as they are given.
func (f *signerFiles) write(all ...signed.Statement) {
	f.t.Helper()
	key, err := signed.LoadKey(f.key)
	if err != nil {
		f.t.Fatal(err)
	}
	var lines []signed.Signed
	for _, x := range all {
		s, err := signed.Sign(x, key)
		if err != nil {
			f.t.Fatal(err)
		}
		lines = append(lines, s)
	}
	if err := os.WriteFile(f.cluster+".signed", signed.Lines(lines), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *signerFiles) member(name, block string, epoch, expires uint64) signed.Statement {
	return signed.Statement{Kind: signed.Member, Name: name, ID: f.ids[name], Blocks: []netip.Prefix{netip.MustParsePrefix(block)}, Epoch: epoch, Expires: expires}
}

func (f *signerFiles) raw() string {
	f.t.Helper()
	data, err := os.ReadFile(f.cluster + ".signed")
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

func (f *signerFiles) statements() (out []string) {
	f.t.Helper()
	all, err := readStatements(f.cluster + ".signed")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, x := range all {
		key, err := signed.LoadKey(f.key)
		if err != nil || !x.Signer.MatchesPrivateKey(key) {
			f.t.Errorf("%s is signed by %s, %v", x.Describe(), x.Signer, err)
		}
		out = append(out, x.Describe())
	}
	return out
}

// Renewal, with another key too, lifts no ban and loses neither bans nor delegations; one node that is signed by name is lifted.
func TestRenewalKeepsBans(t *testing.T) {
	f := newSignerFiles(t)
	f.run(0, "2 signed", "sign")
	f.run(2, `no node "edge-77"`, "ban", "edge-77")
	f.run(0, "ban edge-77", "ban", "edge-77", "--force")
	f.run(0, "ban b", "ban", "b")
	f.run(0, "1 signed", "delegate", f.ids["a"].String(), "--range", "10.244.0.0/17", "--until", "2030-12-31")
	f.run(0, "left out, because a signed statement bans them: b;", "sign")
	for range 2 { // the second time with another key
		f.run(0, "4 signed", "sign", "--renew")
		all := strings.Join(f.statements(), "\n")
		for _, want := range []string{"member a ", "ban b", "ban edge-77", "delegation " + f.ids["a"].String() + " 10.244.0.0/17 until 2031-01-01"} {
			if !strings.Contains(all, want) {
				t.Errorf("no %q in\n%s", want, all)
			}
		}
		if err := os.Remove(f.key); err != nil {
			t.Fatal(err)
		}
		f.run(0, "12D3KooW", "key", f.key)
		before := f.raw()
		f.run(2, f.cluster+".signed is signed by 12D3KooW", "ban", "a") // nobody would take it, nor what it replaced
		f.run(2, "--force", "sign", "--renew")
		f.run(2, "--cluster is empty", "ban", "a", "--cluster", "")
		if f.raw() != before {
			t.Error("what is refused changes the file")
		}
		f.run(0, "4 signed", "sign", "--renew", "--force")
	}
	f.run(0, "member b", "sign", "--name", "b", "--peer-id", f.ids["b"].String(), "--pod-cidr", "10.244.2.0/24")
	f.run(0, "4 signed", "sign", "--renew")
	if all := strings.Join(f.statements(), "\n"); !strings.Contains(all, "member b") {
		t.Errorf("b is not lifted:\n%s", all)
	}
}

// What is signed after others' last day would end them on all nodes: that is refused with their names, and what has ended is signed
// again without more words.
func TestSigningEndsNobodyUnnoticed(t *testing.T) {
	f := newSignerFiles(t)
	now := uint64(time.Now().Unix())
	before := []signed.Statement{f.member("a", "10.244.1.0/24", now-1000, now-500), f.member("b", "10.244.2.0/24", now-1000, 0)}
	f.write(before...)
	f.run(2, "would end 1 statements on all nodes, whose day (--expires, --until) is over: a;", "ban", "b")
	f.run(0, "ban a", "ban", "a")
	f.write(before...)
	f.run(0, "ban b", "ban", "b", "--force")
	f.write(before...)
	f.run(2, `--expires "2026-01-02" is over`, "sign", "--expires", "2026-01-02")
	f.run(0, "1 signed", "sign")
	f.run(0, "ban b", "ban", "b")
}
