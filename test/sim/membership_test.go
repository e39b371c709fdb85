package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sys/unix"

	"edgemesh/agent/lan/decide"
	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/test/tier"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/who/admit"
	"edgemesh/tunnel/p2p/who/members"
)

// Their module is that of the simulation.
var _ = tier.Package(tier.OfAll)

// full reports whether this is `make sim`.
func full() bool { return tier.IsLong() }

// device is a TUN that nobody uses.
type device struct{ closed chan struct{} }

func (d device) Read([]byte) (int, error) { <-d.closed; return 0, os.ErrClosed }
func (device) Write([]byte) error         { return nil }
func (device) UDPSegments() bool          { return false }
func (device) Pending() bool              { return false }
func (d device) Close() error             { close(d.closed); return nil }

// nowhere has no path to anybody.
type nowhere struct{}

func (nowhere) Open(context.Context, tunnel.PeerID, tunnel.Lane) (tunnel.Carrier, error) {
	return nil, errors.New("no path")
}

// agent is the parts of an agent that hold the membership.
type agent struct {
	dir    string
	self   string
	state  mesh.State
	plan   mesh.Plan
	gater  *members.Gater
	tunnel *tunnel.Tunnel
	lan    *decide.Machine
	saved  *snapshot.Keeper
}

func newAgent(t *testing.T, self mesh.Node) *agent {
	id, err := peer.Decode(string(self.PeerID))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	a := &agent{dir: dir, saved: &snapshot.Keeper{Dir: dir}, self: self.Name, gater: members.NewGater(members.NewView(id, members.Membership{}), members.Rules{}),
		tunnel: tunnel.New(tunnel.Config{Device: device{make(chan struct{})}, Underlay: nowhere{}}),
		lan:    decide.New(decide.Config{Self: self.PeerID, Versions: [2]bool{true, false}})}
	t.Cleanup(func() { a.tunnel.Close() })
	return a
}

// processorTime is what this process has used so far: other programs beside it do not count.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// step is one part of what a membership passes through, and what that took.
type step struct {
	name string
	took time.Duration
	held int64 // bytes on the heap; 0: not looked at
}

// apply brings s into force, step by step, as the agent does.
func (a *agent) apply(t *testing.T, s mesh.State, weigh bool) (out []step) {
	do := func(name string, f func() error) {
		t.Helper()
		var before int64
		if weigh {
			before = Held()
		}
		began := processorTime()
		err := f()
		x := step{name: name, took: processorTime() - began}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if weigh {
			x.held = Held() - before
		}
		out = append(out, x)
	}
	var plan mesh.Plan
	do("plan", func() (err error) { plan, err = a.plan.Next(s, a.self); return err })
	c := plan.Since(a.plan)
	var m members.Change
	var routes tunnel.Change
	do("translate", func() (err error) {
		m.Membership, err = admit.Membership(c.Come, plan.Relays, plan.Host.ClusterCIDRs, admit.Decode)
		for i, n := range c.Come {
			for _, b := range n.PodCIDRs {
				routes.Come = append(routes.Come, tunnel.Route{Prefix: b, Peer: tunnel.PeerID(m.Members[i].ID), Self: n.Name == a.self})
			}
		}
		for _, n := range c.Gone {
			id, err := peer.Decode(string(n.PeerID))
			if err != nil {
				return err
			}
			m.Gone, routes.Gone = append(m.Gone, id), append(routes.Gone, tunnel.PeerID(id))
		}
		return err
	})
	do("blocks' lengths", func() error { plan.Host.LAN.Bits = plan.BlockBits(); return nil })
	do("compare", func() error { plan.Equal(a.plan); return nil })
	do("gate", func() error { a.gater.SetView(a.gater.View().With(m)); return nil })
	do("tunnel", func() error {
		if a.plan.Nodes == nil {
			a.tunnel.SetRoutes(routes.Come)
		} else {
			a.tunnel.ChangeRoutes(routes)
		}
		return nil
	})
	do("LAN", func() error { a.lan.SetPlan(time.Now(), plan, decide.Off{}); return nil })
	do("snapshot", func() error { return a.saved.SaveStep(s, a.plan, plan) })
	a.state, a.plan = s, plan
	runtime.KeepAlive(m)
	runtime.KeepAlive(routes)
	return out
}

// check compares what is in force with s.
func (a *agent) check(t *testing.T, s mesh.State) {
	t.Helper()
	v := a.gater.View()
	if v.Len() != len(s.Nodes)-1 {
		t.Fatalf("%d members may connect, want %d", v.Len(), len(s.Nodes)-1)
	}
	got, err := snapshot.Load(a.dir)
	if err != nil || len(got.Nodes) != len(s.Nodes) {
		t.Fatalf("the snapshot has %d nodes, %v; want %d", len(got.Nodes), err, len(s.Nodes))
	}
	byName := map[string]mesh.Node{}
	for _, n := range got.Nodes {
		byName[n.Name] = n
	}
	for _, n := range s.Nodes {
		id, err := peer.Decode(string(n.PeerID))
		if got := byName[n.Name]; err != nil || got.PeerID != n.PeerID || !slices.Equal(got.PodCIDRs, n.PodCIDRs) {
			t.Fatalf("the snapshot has %+v, want %+v", got, n)
		}
		if n.Name != a.self && (!v.IsMember(id) || v.Name(id) != n.Name) {
			t.Fatalf("%s may not connect", n.Name)
		}
	}
}

// changed is s with one node more, and without another.
func changed(s mesh.State, i int) mesh.State {
	one := Cluster(1, uint64(1000+i)).Nodes[0]
	one.Name, one.PodCIDRs = fmt.Sprintf("new-%d", i), s.Nodes[len(s.Nodes)/2].PodCIDRs
	s.Nodes = slices.Clone(s.Nodes)
	s.Nodes[len(s.Nodes)/2] = one
	return s
}

// yaml is s as a membership file.
func yaml(s mesh.State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "podCIDRs: [%s]\nnodes:\n", s.PodCIDRs[0])
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, "  - {name: %s, peerID: %s, podCIDRs: [%s]}\n", n.Name, n.PeerID, n.PodCIDRs[0])
	}
	return b.String()
}

// TestMembership brings clusters of three sizes into force, changes one member of each, and starts from the snapshot.
func TestMembership(t *testing.T) {
	sizes := []int{300}
	if full() {
		sizes = []int{1_000, 10_000, 100_000}
	}
	for _, n := range sizes {
		s := Cluster(n, 1)
		before := Held()
		path := filepath.Join(t.TempDir(), "cluster.yaml")
		if err := os.WriteFile(path, []byte(yaml(s)), 0o600); err != nil {
			t.Fatal(err)
		}
		began := processorTime()
		read, err := file.Load(path)
		t.Logf("%7d members: membership file read in %v: %d nodes, %v", n, ms(processorTime()-began), len(read.Nodes), err)

		a := newAgent(t, s.Nodes[0])
		report(t, n, "start", a.apply(t, s, full()))
		a.check(t, s)
		t.Logf("%7d members: all parts hold %d bytes a member, the membership itself aside", n, (Held()-before)/int64(n))
		var all [][]step
		for i := range 5 {
			s = changed(s, i)
			all = append(all, a.apply(t, s, false))
		}
		a.check(t, s)
		report(t, n, "change", median(all))
		began = processorTime()
		if _, err := snapshot.Load(a.dir); err != nil {
			t.Fatal(err)
		}
		t.Logf("%7d members: snapshot read in %v", n, ms(processorTime()-began))
		a.tunnel.SetRoutes(nil)
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", d.Seconds()*1e3) }

// median takes the median of every step, since other programs run beside.
func median(all [][]step) []step {
	out := slices.Clone(all[0])
	for i := range out {
		var took []time.Duration
		for _, x := range all {
			took = append(took, x[i].took)
		}
		slices.Sort(took)
		out[i].took = took[len(took)/2]
	}
	return out
}

func report(t *testing.T, n int, what string, steps []step) {
	var sum time.Duration
	for _, x := range steps {
		sum += x.took
		t.Logf("%7d members: %-6s  %-16s %12s  %6d B/member", n, what, x.name, ms(x.took), x.held/int64(n))
	}
	t.Logf("%7d members: %-6s  %-16s %12s", n, what, "all", ms(sum))
}
