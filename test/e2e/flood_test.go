package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// A stranger's flood, as docs/security.md has it.
const (
	floodConns = 5000
	floodHosts = 200
	floodHold  = 12 * time.Second
	floodRSS   = 60 << 10 // KiB that a flood may cost
)

// knocked is what `podtool knock` reports.
type knocked struct{ Opened, Kept, Answers int }

// reports are the lines that p has printed.
func reports(t *testing.T, p *lab.Process) (all []knocked) {
	t.Helper()
	for line := range strings.Lines(p.Tail(10)) {
		var k knocked
		if json.Unmarshal([]byte(line), &k) == nil {
			all = append(all, k)
		}
	}
	return all
}

// rest has the peak of a process's memory counted from now on.
func rest(t *testing.T, p *lab.Process) {
	t.Helper()
	ok(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0))
}

// peak is the most memory that a process had, in KiB.
func peak(t *testing.T, p *lab.Process) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	ok(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, err := strconv.Atoi(f[1])
			ok(t, err)
			return n
		}
	}
	t.Fatalf("no VmHWM in %s", b)
	return 0
}

// flooded are a relay, with port 443 shared by TCP and WebSocket, a public node, two sites that talk through the relay,
// one site that only gets out to port 443, and a stranger with many addresses.
type flooded struct {
	lab           *lab.Lab
	relay         *lab.Relay
	cloud         *lab.Node
	edge1, edge2  *lab.Node // relayed
	late, only443 *lab.Node // come in the middle of it
	stranger      *lab.NS
	first         string // of its addresses
	pod           map[*lab.Node]*lab.Pod
	round         int
	first443      string // what connections to port 443 say
}

func newFlooded(t *testing.T) *flooded {
	l := newLab(t)
	f := &flooded{lab: l, relay: relay(t, l, "relay"), pod: map[*lab.Node]*lab.Pod{}}
	f.relay.Listen = append(f.relay.Listen, "/ip4/0.0.0.0/tcp/443", "/ip4/0.0.0.0/tcp/443/ws")
	l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+f.relay.Addr+"/tcp/443/ws/p2p/"+f.relay.PeerID)
	a, b := site(t, l, "site-a", lab.Symmetric), site(t, l, "site-b", lab.Symmetric)
	c, only := site(t, l, "site-c", lab.EIM), site(t, l, "site-443", lab.EIM)
	ok(t, only.Router.Script(
		"iptables -w -I FORWARD -o wan0 -j DROP",
		"iptables -w -I FORWARD -o wan0 -p tcp --dport 443 -j ACCEPT",
		// Only what begins like HTTP gets through.
		"iptables -w -I FORWARD -o wan0 -p tcp --dport 443 -m string --algo bm --string /multistream --to 100 -j DROP"))
	f.edge1, f.edge2 = node(t, a, "edge-1", lab.NodeOptions{}), node(t, b, "edge-2", lab.NodeOptions{})
	f.late, f.only443 = node(t, c, "late", lab.NodeOptions{}), node(t, only, "only-443", lab.NodeOptions{})
	f.cloud = cloud(t, l, "cloud-1", lab.NodeOptions{})
	f.cloud.Config.Listen = []string{"/ip4/0.0.0.0/tcp/4501", "/ip4/0.0.0.0/udp/4501/quic-v1"}
	n, first, err := l.AddStranger("stranger", floodHosts)
	ok(t, err)
	f.stranger, f.first = n, first.String()
	startAll(t, l)
	ready(t, l.Nodes()...)
	for _, n := range l.Nodes() {
		f.pod[n] = pod(t, n, "on-"+n.Name)
	}
	curlPods(t, f.pod[f.edge1], f.pod[f.edge2], 10*time.Second)
	return f
}

// targets are what the stranger floods by TCP or QUIC.
func (f *flooded) targets(proto string) []string {
	out := []string{f.relay.Addr + ":4501", f.cloud.Addr.String() + ":4501"}
	if proto == "tcp" {
		out = append(out, f.relay.Addr+":443")
	}
	return out
}

// flood floods all targets and returns when it is under way.
func (f *flooded) flood(t *testing.T, proto string, count, hosts int, hold time.Duration) []*lab.Process {
	t.Helper()
	f.round++
	var all []*lab.Process
	for i, to := range f.targets(proto) {
		args := []string{"knock", "--proto", proto, "--count", strconv.Itoa(count), "--from", f.first, "--hosts", strconv.Itoa(hosts), "--hold", hold.String()}
		if strings.HasSuffix(to, ":443") && f.first443 != "" {
			args = append(args, "--first", f.first443)
		}
		p, err := f.stranger.StartTool(fmt.Sprintf("knock-%d-%d", f.round, i), append(args, to)...)
		ok(t, err)
		all = append(all, p)
	}
	for _, p := range all {
		ok(t, lab.Until(within(t, 60*time.Second), 50*time.Millisecond, func() error {
			if r := reports(t, p); len(r) == 0 || r[0].Opened != count {
				return fmt.Errorf("%s: %s", p.Name, p.Tail(3))
			}
			return nil
		}))
	}
	return all
}

// floodEnds waits for the end of a flood and returns what came of it, by target.
func floodEnds(t *testing.T, all []*lab.Process) (out []knocked) {
	t.Helper()
	for _, p := range all {
		ok(t, p.Wait(within(t, 2*floodHold)))
		r := reports(t, p)
		if len(r) != 2 {
			t.Fatalf("%s: %s", p.Name, p.Tail(3))
		}
		out = append(out, r[1])
	}
	return out
}

// comes restarts a node's agent, which has to be served within bound.
func comes(t *testing.T, n *lab.Node, bound time.Duration) {
	t.Helper()
	ok(t, n.Agent.Stop())
	ok(t, n.Start())
	start := stopwatch(t)
	if err := n.WaitReserved(within(t, bound)); err != nil {
		t.Errorf("%s is not served within %v: %v", n.Name, bound, err)
	}
	t.Logf("%s is served %d ms after its agent's start", n.Name, start().Milliseconds())
}

// TestFloods has a stranger open thousands of connections to a relay, to port 443 there, which TCP and WebSocket share, and
// to a public node's agent. Members get in, running flows continue, and memory stays.
func TestFloods(t *testing.T) {
	tier.All(t)
	f := newFlooded(t)
	t.Run("Control", func(t *testing.T) { // the same tool is heard as long as it is modest
		const few = 20
		idle, initials := f.flood(t, "tcp", few, 1, 2*time.Second), f.flood(t, "quic", few, 1, 2*time.Second)
		for i, k := range floodEnds(t, idle) {
			if k.Kept != few {
				t.Errorf("%s keeps %d of %d connections", f.targets("tcp")[i], k.Kept, few)
			}
		}
		for i, k := range floodEnds(t, initials) {
			if k.Answers < few*3/4 { // nobody sends a first packet again
				t.Errorf("%s: %d packets answer %d first packets", f.targets("quic")[i], k.Answers, few)
			}
		}
	})
	// On the port that TCP and WebSocket share: requests that never end.
	f.first443 = "GET / HTTP/1.1"
	for _, proto := range []string{"tcp", "quic"} {
		for _, hosts := range []int{1, floodHosts} {
			t.Run(fmt.Sprintf("%s-%d", proto, hosts), func(t *testing.T) {
				if proto != "tcp" || hosts != floodHosts { // the one that costs most
					tier.Long(t)
				}
				f.attack(t, proto, hosts)
			})
		}
	}
}

func (f *flooded) attack(t *testing.T, proto string, hosts int) {
	alone := f.steady(t)()
	before := map[*lab.Process]int{}
	for _, p := range []*lab.Process{f.relay.Process, f.cloud.Agent} {
		rest(t, p)
		before[p] = peak(t, p)
	}
	beside := f.steady(t) // from before the first connection
	all := f.flood(t, proto, floodConns, hosts, floodHold)
	comes(t, f.late, 3*time.Second)
	// To the flooded agent itself.
	if err := f.pod[f.late].Ping(t.Context(), f.pod[f.cloud].IP4().String(), 3*time.Second); err != nil {
		t.Error(err)
	}
	if _, err := f.late.WaitPath(within(t, 3*time.Second), f.cloud, "direct"); err != nil {
		t.Error(err)
	}
	comes(t, f.only443, 5*time.Second)
	during := beside()
	t.Logf("a running flow of 100 Mbit/s: %.1f before, %.1f during the flood, longest stall %.0f ms", alone.Mbps, during.Mbps, during.StallMs)
	if during.Mbps < 0.9*alone.Mbps {
		t.Errorf("the running flow fell from %.1f to %.1f Mbit/s", alone.Mbps, during.Mbps)
	}
	for p, kib := range before {
		grown := peak(t, p) - kib
		t.Logf("%s: memory grew by %d KiB at most", p.Name, grown)
		if grown > floodRSS {
			t.Errorf("%s: memory grew by %d KiB, want at most %d", p.Name, grown, floodRSS)
		}
	}
	for i, k := range floodEnds(t, all) {
		t.Logf("%s: %+v", f.targets(proto)[i], k)
	}
}

// steady runs a flow of 100 Mbit/s through the relay. Its rate is by a fair clock: the strangers' programs, and whatever
// else runs here, take processor time from the relay that they would not have elsewhere.
func (f *flooded) steady(t *testing.T) func() lab.Bulk {
	t.Helper()
	var b lab.Bulk
	var err error
	done := make(chan struct{})
	ctx := within(t, 60*time.Second)
	go func() {
		defer close(done)
		clock := product(t).Start()
		defer clock.Stop()
		err = f.pod[f.edge1].Tool(ctx, &b, "bulk", "--bytes", "100000000", "--mbps", "100", f.pod[f.edge2].IP4().String())
		end := time.Now()
		if fair := clock.Between(end.Add(-time.Duration(b.Seconds*float64(time.Second))), end); fair > 0 {
			b.Mbps = min(100, float64(b.Bytes)*8/1e6/fair.Seconds())
		}
	}()
	return func() lab.Bulk {
		<-done
		if err != nil || !b.Match {
			t.Errorf("a running flow: %+v: %v", b, err)
		}
		return b
	}
}
