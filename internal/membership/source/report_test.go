package source

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
)

// Who joins, leaves, is banned or has another key is logged once, by name and peer ID; another key is a warning, also after
// the member had left.
func TestReport(t *testing.T) {
	var out bytes.Buffer
	r := Reporter{Log: slog.New(slog.NewTextHandler(&out, nil))}
	var was []mesh.Node
	step := func(banned []string, want string, nodes ...mesh.Node) {
		t.Helper()
		out.Reset()
		r.Report(mesh.Diff(was, nodes), mesh.State{Nodes: nodes, Banned: banned})
		was = nodes
		var got []string
		for line := range strings.Lines(out.String()) {
			_, line, _ = strings.Cut(strings.TrimSpace(line), "level=")
			if level, rest, _ := strings.Cut(line, " "); level == "WARN" {
				line = level + rest[strings.Index(rest, " node="):]
			}
			got = append(got, line)
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%q\nwant %q", strings.Join(got, "; "), want)
		}
	}
	node := func(name, id string) mesh.Node { return mesh.Node{Name: name, PeerID: mesh.PeerID(id)} }
	step(nil, `INFO msg="member joined" node=a peer=A; INFO msg="member joined" node=b peer=B`, node("a", "A"), node("b", "B"))
	step(nil, "", node("a", "A"), mesh.Node{Name: "b", PeerID: "B", Site: "x"})
	moved := mesh.Node{Name: "a", PeerID: "A", PodCIDRs: kubetest.Prefixes(t, "10.244.1.0/24")}
	step(nil, `INFO msg="a member's blocks changed" node=a peer=A blocks=[10.244.1.0/24] before=[]`, moved, node("b", "B"))
	step(nil, `INFO msg="a member's blocks changed" node=a peer=A blocks=[] before=[10.244.1.0/24]`, node("a", "A"), node("b", "B"))
	step(nil, "WARN node=b peer=X before=B", node("a", "A"), node("b", "X"))
	step(nil, "", node("a", "A"), node("b", "X"))
	step([]string{"b"}, `INFO msg="member banned" node=b peer=X`, node("a", "A"))
	step(nil, `INFO msg="member left" node=a peer=A`)
	step(nil, `WARN node=a peer=Y before=A; INFO msg="member joined" node=b peer=X`, node("a", "Y"), node("b", "X"))
	var many []mesh.Node
	for i := range 30 {
		many = append(many, node(fmt.Sprint("n", i), fmt.Sprint("N", i)))
	}
	out.Reset()
	r.Report(mesh.Diff(nil, many), mesh.State{Nodes: many})
	if n := strings.Count(out.String(), "\n"); n != mostLines+1 || !strings.Contains(out.String(), "count=10") {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}

// A key that changed in a membership file while the agent was off is a warning when it starts; without a snapshot nothing is said.
func TestReportAfterARestart(t *testing.T) {
	dir := t.TempDir()
	ids := kubetest.PeerIDs(t, 3)
	state := func(b string) mesh.State {
		return mesh.State{Encryption: mesh.EncryptionAuto, PodCIDRs: kubetest.Prefixes(t, "10.244.0.0/16"), Nodes: []mesh.Node{
			{Name: "a", PeerID: mesh.PeerID(ids[0]), PodCIDRs: kubetest.Prefixes(t, "10.244.1.0/24")},
			{Name: "b", PeerID: mesh.PeerID(b), PodCIDRs: kubetest.Prefixes(t, "10.244.2.0/24")},
		}}
	}
	var out bytes.Buffer
	r := Reporter{Log: slog.New(slog.NewTextHandler(&out, nil))}
	r.Restarted(dir, state(ids[1]))
	if err := snapshot.Save(dir, state(ids[1])); err != nil {
		t.Fatal(err)
	}
	if r.Restarted(dir, state(ids[1])); out.Len() > 0 {
		t.Errorf("nothing changed: %s", out.String())
	}
	r.Restarted(dir, state(ids[2]))
	if s := out.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "node=b peer="+ids[2]+" before="+ids[1]) {
		t.Errorf("%s", s)
	}
}

// Of too many members that left single ones are forgotten, not all.
func TestGoneIsBounded(t *testing.T) {
	r := Reporter{Log: slog.New(slog.DiscardHandler)}
	var all []mesh.Node
	for i := range mostGone + 10 {
		all = append(all, mesh.Node{Name: fmt.Sprintf("n%05d", i), PeerID: "x"})
	}
	r.Report(mesh.Diff(all[:mostGone], nil), mesh.State{})
	if r.Report(mesh.Diff(all[mostGone:], nil), mesh.State{}); len(r.gone) != mostGone {
		t.Errorf("%d are remembered, want %d", len(r.gone), mostGone)
	}
}
