package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// signer is a signing key in a file.
type signer struct {
	file, id string
	with     *lab.Node // whose programs are used
}

func newSigner(t *testing.T, n *lab.Node, name string) signer {
	t.Helper()
	s := signer{file: filepath.Join(n.Dir, name), with: n}
	out, _, err := n.AgentCommand(t.Context(), "membership", "key", s.file)
	ok(t, err)
	s.id = strings.TrimSpace(out)
	return s
}

// signs runs a command of `membership` with the key, on the statements beside a file.
func (s signer) signs(t *testing.T, membership string, args ...string) {
	t.Helper()
	_, errOut, err := s.with.AgentCommand(t.Context(), append(append([]string{"membership"}, args...), "--key", s.file, "--membership", membership)...)
	if err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
}

// logsLine waits until the log of a node's agent has a line with all of texts.
func logsLine(t *testing.T, n *lab.Node, texts ...string) {
	t.Helper()
	ok(t, lab.Until(within(t, 10*time.Second), 100*time.Millisecond, func() error {
	lines:
		for line := range strings.Lines(n.Agent.Tail(1 << 20)) {
			for _, text := range texts {
				if !strings.Contains(line, text) {
					continue lines
				}
			}
			return nil
		}
		return fmt.Errorf("%s does not log %q", n.Name, texts)
	}))
}

// TestSignedMembership: nodes that pin a key believe neither a file that was changed, nor a member that passes on what
// it has forged, and say who it was; a ban that one of them has reaches another one over itself alone: without relay, and
// with a file that knows nothing of it.
func TestSignedMembership(t *testing.T) {
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	var nodes []*lab.Node
	for i := range 3 {
		nodes = append(nodes, cloud(t, l, fmt.Sprintf("edge-%d", i+1), lab.NodeOptions{}))
	}
	one, two, three := nodes[0], nodes[1], nodes[2]
	operator, forger := newSigner(t, one, "operator.key"), newSigner(t, three, "forger.key")
	ok(t, l.WriteMembership())
	operator.signs(t, one.Membership, "sign")
	statements, err := os.ReadFile(one.Membership + ".signed")
	ok(t, err)
	r.Signers = []string{operator.id}
	ok(t, os.WriteFile(r.Membership+".signed", statements, 0o644))
	for _, n := range nodes {
		n.Config.Signers = []string{operator.id}
		ok(t, os.WriteFile(n.Membership+".signed", statements, 0o644))
	}
	three.Config.Signers = append(three.Config.Signers, forger.id) // it was taken over
	startAll(t, l)
	pods := map[*lab.Node]*lab.Pod{}
	for _, n := range nodes {
		pods[n] = pod(t, n, "on-"+n.Name)
	}
	curlPods(t, pods[one], pods[two], 10*time.Second)
	curlPods(t, pods[three], pods[one], 10*time.Second)
	curlPods(t, pods[three], pods[two], 10*time.Second)

	// cluster.yaml is changed at edge-1: edge-2 is to be another key, and a stranger a member.
	forged := l.Cluster
	forged.Nodes = nil
	for _, m := range l.Cluster.Nodes {
		if m.Name == two.Name {
			m.PeerID = forger.id
		}
		forged.Nodes = append(forged.Nodes, m)
	}
	forged.Nodes = append(forged.Nodes, lab.Member{Name: "stranger", PeerID: r.PeerID, PodCIDRs: []string{"10.244.99.0/24"}})
	ok(t, lab.ReplaceFile(one.Membership, forged.YAML()))
	logsLine(t, one, "edge-2", forger.id, two.PeerID, one.Membership)
	logsLine(t, one, "stranger", "no signed statement", one.Membership)
	st, err := one.Status(t.Context())
	ok(t, err)
	if st.Peer(two.Name).PeerID != two.PeerID || st.Peer("stranger").Node != "" {
		t.Errorf("edge-1 has %+v and %+v", st.Peer(two.Name), st.Peer("stranger"))
	}
	curlPods(t, pods[one], pods[two], 2*time.Second)

	// A member forges a ban, and a statement, and passes them on.
	forger.signs(t, three.Membership, "ban", two.Name, "--force")
	curlPods(t, pods[three], pods[one], 10*time.Second) // edge-3 believes itself, and drops edge-2
	logsLine(t, one, three.PeerID, forger.id, "a member passes on statements of keys that do not count here")
	curlPods(t, pods[one], pods[two], 2*time.Second)

	// The site of edge-2 is offline, except for edge-1, where the operator bans edge-3.
	r.Process.Kill()
	operator.signs(t, one.Membership, "ban", three.Name)
	since := time.Now()
	ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error {
		st, err := two.Status(t.Context())
		if err == nil && st.Peer(three.Name).Node != "" {
			err = errors.New("edge-2 has not heard of the ban")
		}
		return err
	}))
	t.Logf("the ban reached the other site after %d ms", time.Since(since).Milliseconds())
	logsLine(t, one, "member banned", three.PeerID)
	noAnswer(t, pods[three].NS, pods[two].IP4(), "a pod of the banned node")
	curlPods(t, pods[one], pods[two], 2*time.Second)

	// It holds after a restart, with the old files and without anybody who knows better.
	ok(t, two.Agent.Stop())
	ok(t, two.Start())
	ok(t, two.WaitPods(within(t, 10*time.Second)))
	ok(t, lab.Until(within(t, 20*time.Second), 200*time.Millisecond, func() error {
		return tryCurl(t.Context(), pods[one].NS, pods[two], pods[two].IP4(), pods[one].IP4(), time.Second)
	}))
	noAnswer(t, pods[three].NS, pods[two].IP4(), "a pod of the banned node, after a restart of edge-2")
}
