package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// secrets writes a file with join secrets.
func secrets(t *testing.T, path string, names ...string) {
	t.Helper()
	var text string
	for _, n := range names {
		text += n + strings.Repeat(".", 32) + "\n"
	}
	ok(t, os.WriteFile(path+".new", []byte(text), 0o600))
	ok(t, os.Rename(path+".new", path))
}

// wantsAnotherSecret waits until node n knows that its relay wants another secret.
func wantsAnotherSecret(t *testing.T, n *lab.Node) {
	t.Helper()
	ok(t, lab.Until(within(t, 15*time.Second), 50*time.Millisecond, func() error {
		s, err := n.Status(t.Context())
		if err == nil && (s.Relays[0].Reserved || !strings.Contains(s.Relays[0].Error, "join secret")) {
			err = fmt.Errorf("%s: %+v", n.Name, s.Relays)
		}
		return err
	}))
}

// TestJoinSecretRelay has a relay that knows nobody: no membership, no API. It serves whoever proves the secret, for relayed
// and punched paths, and refuses the node that proves another one, whose pods therefore reach nobody. That node is the
// control of itself: with the right file the same node gets through.
func TestJoinSecretRelay(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	r.JoinSecret = filepath.Join(filepath.Dir(r.StateDir), "join-secret")
	secrets(t, r.JoinSecret, "right")
	for name, kind := range map[string]lab.NAT{"edge-1": lab.EIM, "edge-2": lab.EIM, "edge-3": lab.Symmetric, "edge-4": lab.Symmetric} {
		n := at(t, l, name, kind)
		n.Config.JoinSecretFile = filepath.Join(n.Dir, "join-secret")
		secrets(t, n.Config.JoinSecretFile, "right")
	}
	nodes := map[string]*lab.Node{}
	for _, n := range l.Nodes() {
		nodes[n.Name] = n
	}
	thief := nodes["edge-4"]
	secrets(t, thief.Config.JoinSecretFile, "wrong")
	ok(t, l.WriteMembership())
	ok(t, os.Remove(r.Membership))
	ok(t, r.Start())
	ok(t, r.WaitUp(within(t, 10*time.Second)))
	for _, n := range l.Nodes() {
		ok(t, n.Start())
	}
	inside := []*lab.Node{nodes["edge-1"], nodes["edge-2"], nodes["edge-3"]}
	ready(t, inside...)
	ok(t, thief.WaitPods(within(t, 10*time.Second)))
	wantsAnotherSecret(t, thief)
	pods := map[*lab.Node]*lab.Pod{}
	for _, n := range l.Nodes() {
		pods[n] = pod(t, n, "on-"+n.Name)
	}
	curlPods(t, pods[inside[0]], pods[inside[1]], 5*time.Second)
	curlPods(t, pods[inside[0]], pods[inside[2]], 5*time.Second)
	_, err := inside[0].WaitPath(within(t, 15*time.Second), inside[1], "punched") // so the relay told both where it sees them
	ok(t, err)
	noAnswer(t, pods[thief].NS, pods[inside[0]].IP4(), "a pod of the node with the wrong secret")
	noAnswer(t, pods[inside[0]].NS, pods[thief].IP4(), "a pod, from the node with the wrong secret,")

	// The same node with the secret gets through: nothing else kept it out.
	secrets(t, thief.Config.JoinSecretFile, "right")
	ok(t, thief.WaitReserved(within(t, 15*time.Second)))
	curlPods(t, pods[thief], pods[inside[0]], 5*time.Second)

	// It is stolen: the others rotate the secret, without losing a packet's way.
	tcp := flow(t, pods[inside[0]], "tcp", 10*time.Second, pods[inside[2]].IP4())
	secrets(t, r.JoinSecret, "new", "right")
	time.Sleep(2 * time.Second) // sleep: files are read every second
	for _, n := range inside {
		secrets(t, n.Config.JoinSecretFile, "new")
	}
	// Connections proved the old secret; as long as both are valid nobody has to prove again.
	g, err := tcp()
	if err != nil || g.Lost > 0 || g.FairMs > worstMoved {
		t.Errorf("TCP flow while the secret has two values: %+v: %v", g, err)
	}
	secrets(t, r.JoinSecret, "new")
	wantsAnotherSecret(t, thief)
	for _, n := range inside {
		ok(t, n.WaitReserved(within(t, 15*time.Second)))
	}
	curlPods(t, pods[inside[0]], pods[inside[2]], 5*time.Second)
	if out, err := r.Run(t.Context(), "cat", filepath.Join(r.StateDir, "membership.json")); err == nil {
		t.Errorf("the relay knows members: %s", out)
	}
}
