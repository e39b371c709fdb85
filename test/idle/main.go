// Command idle measures what a member costs whose pods say little: IP bytes on the WAN side of its site's router, in both
// directions, by what they are for. `make bench-idle` runs it; all states stand side by side in one lab.
//
//	main.go     the states, and what happens in them
//	lan.go      what neighbours on a LAN cost an agent (-lan N)
//	account.go  what nodes count themselves, beside what is seen
//	capture.go  reads what tcpdump wrote, and sums it up
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

// state is one row: a node behind a router of its own, and a time in which it is watched.
type state struct {
	name     string
	node     string        // its site, and so its capture, is named after it
	udp, tcp time.Duration // what its router remembers
	reset    bool
	noTCP    bool
	from, to time.Duration // watched, after the beginning
	minus    string        // the state whose cost is no part of this one's
	peers    bool          // what goes to and from relays is no part of it either
	load     string        // of pods, all the time: tcp or udp
	dual     bool          // it has IPv6, too

	before, after account // what the node counted, at both ends of the time
}

// bare is less than the IP bytes of a segment between peers that carries a pod's packet: 52 are TCP's and IP's, 22 TLS's, 26 those of
// the stream and the frame, at least 40 the packet's.
const bare = 140

// asked is how often a peer is sent a request that is sent one now and then.
const asked = 30 * time.Second

func states(d time.Duration, hub int) []state {
	const m = time.Minute
	quiet := 2*m + min(d, 3*m)
	return []state{
		{name: "idle", node: "idle", udp: 2 * m, tcp: 30 * m, from: m, to: m + d},
		{name: "idle, with IPv6 beside IPv4", node: "dual", udp: 2 * m, tcp: 30 * m, from: m, to: m + d, dual: true},
		{name: "idle, NAT forgets UDP after 30 s and TCP after 2 min", node: "short", udp: m / 2, tcp: 2 * m, from: m, to: m + d},
		{name: "the same with a reset, TCP after 5 min", node: "reset", udp: m / 2, tcp: 5 * m, reset: true, from: m, to: m + d},
		{name: "idle, TCP blocked, UDP 15 s", node: "udp", udp: m / 4, tcp: m, noTCP: true, from: m, to: m + d},
		{name: "one peer, last packet 2 to 5 min ago", node: "quiet", udp: 2 * m, tcp: 30 * m, from: 2 * m, to: quiet, minus: "idle"},
		{name: "one peer, first packet and the 2 min after it", node: "quiet", udp: 2 * m, tcp: 30 * m, from: 0, to: 2 * m, minus: "idle"},
		{name: fmt.Sprintf("a hub, last packets of %d peers 1 to 2 min ago and more", hub), node: "hub", udp: 2 * m, tcp: 30 * m, from: 3 * m, to: 3*m + min(d, 3*m), peers: true},
		{name: "pods send 1 Mbit/s in both directions over TCP", node: "tcp", udp: 2 * m, tcp: 30 * m, from: m, to: m + d, load: "tcp"},
		{name: "pods send 1 Mbit/s in both directions over UDP", node: "datagrams", udp: 2 * m, tcp: 30 * m, from: m, to: m + d, load: "udp"},
		{name: "one peer, a request each 30 s, with its bytes", node: "asked", udp: 2 * m, tcp: 30 * m, from: m, to: m + d, minus: "idle"},
	}
}

// routers are idle nodes behind routers of all kinds.
func routers(d time.Duration) (out []state) {
	for _, udp := range []time.Duration{15 * time.Second, 30 * time.Second, 2 * time.Minute} {
		for _, tcp := range []time.Duration{2 * time.Minute, 5 * time.Minute, time.Hour} {
			for _, reset := range []bool{false, true} {
				how := map[bool]string{false: "silently", true: "with a reset"}[reset]
				out = append(out, state{name: fmt.Sprintf("idle; UDP %v, TCP %v, %s", udp, tcp, how), node: fmt.Sprintf("nat-%d", len(out)),
					udp: udp, tcp: tcp, reset: reset, from: time.Minute, to: time.Minute + d})
			}
		}
	}
	return out
}

func main() {
	d := flag.Duration("time", 10*time.Minute, "how long each state is watched; 0: only the first answers after silence are timed")
	warm := flag.Duration("warm", 2*time.Minute, "how long after the start")
	silence := flag.Duration("silence", 0, "afterwards, be silent for so long and time the first answer behind each router")
	delay := flag.Duration("delay", 0, "round trip between each site and the others")
	only := flag.String("only", "", "the nodes of the states to watch, separated by commas; default: all")
	nats := flag.Bool("nats", false, "also watch idle nodes behind 18 routers that forget UDP and TCP after different times")
	hub := flag.Int("hub", 100, "how many peers a hub has")
	bin := flag.String("bin", "", "directory of agents, relays and tools; default: bin")
	relays := flag.String("relays", "", "directory of other relays")
	lan := flag.Int("lan", 0, "only measure the processor time that so many idle neighbours on a LAN cost an agent")
	verbose := flag.Bool("v", false, "list who sent what")
	keep := flag.String("keep", "", "directory for captures and logs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *lan > 0 {
		if err := neighbours(ctx, *bin, *lan, *warm, *d); err != nil {
			fmt.Fprintln(os.Stderr, "idle:", err)
			os.Exit(1)
		}
		return
	}
	b := bench{states: states(*d, *hub), hub: *hub, watched: *d, warm: *warm, silence: *silence, delay: *delay, relays: *relays, verbose: *verbose, keep: *keep}
	if *nats {
		b.states = append(b.states, routers(*d)...)
	}
	if *only != "" {
		b.states = slices.DeleteFunc(b.states, func(s state) bool { return !slices.Contains(strings.Split(*only, ","), s.node) })
	}
	if err := b.run(ctx, *bin); err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(1)
	}
}

type bench struct {
	states                        []state
	watched, warm, silence, delay time.Duration
	relays, keep                  string
	hub                           int
	verbose                       bool

	product *fair.Product
	l       *lab.Lab
	nodes   map[string]*lab.Node
	pods    map[string]*lab.Pod
	edges   []*lab.Pod // of the hub
}

func (b *bench) run(ctx context.Context, bin string) (err error) {
	b.product = &fair.Product{}
	if b.l, err = lab.New(lab.Options{Bin: bin, Product: b.product}); err != nil {
		return err
	}
	defer func() {
		if cerr := b.l.Close(); err == nil {
			err = cerr
		}
	}()
	if err := b.build(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, b.l.Logs(20))
	}
	fmt.Printf("%d nodes behind NATs, two relays; waiting %v, then watching for %v\n", len(b.nodes), b.warm, b.watched)
	if err := pause(ctx, b.warm); err != nil {
		return err
	}
	if b.watched > 0 {
		if err := b.watch(ctx); err != nil {
			return err
		}
	}
	if err := b.wake(ctx, time.Now()); err != nil {
		return err
	}
	if b.keep != "" {
		if out, err := exec.CommandContext(ctx, "cp", "-r", b.l.Dir, b.keep).CombinedOutput(); err != nil {
			return fmt.Errorf("keep captures: %w: %s", err, out)
		}
	}
	warnings, err := b.l.Warnings()
	for _, w := range warnings {
		fmt.Println(w)
	}
	return err
}

// watch prints what each state costs, as routers see it and as nodes count it.
func (b *bench) watch(ctx context.Context) error {
	began := time.Now()
	var counted sync.WaitGroup
	for i := range b.states {
		counted.Go(func() { b.count(ctx, began, &b.states[i]) })
	}
	err := b.live(ctx)
	counted.Wait()
	if err != nil {
		return err
	}
	rows, err := b.sum(began)
	if err != nil {
		return err
	}
	print(rows, b.verbose)
	return b.compare()
}

// build makes relays, sites and nodes, and starts everything. Each measured node has another one to talk to, in the cloud.
func (b *bench) build(ctx context.Context) error {
	b.nodes, b.pods = map[string]*lab.Node{}, map[string]*lab.Pod{}
	for _, name := range []string{"relay-1", "relay-2"} {
		r, err := b.l.AddRelay(name)
		if err != nil {
			return err
		}
		r.Programs = b.relays
		r.ServeIPv6()
	}
	for _, s := range append(b.states, state{node: "peer", udp: 2 * time.Minute, tcp: 30 * time.Minute}) {
		if b.nodes[s.node] != nil {
			continue
		}
		site, err := b.l.AddSite("site-"+s.node, lab.EIM)
		if err != nil {
			return err
		}
		if b.nodes[s.node], err = site.AddNode(s.node, lab.NodeOptions{}); err != nil {
			return err
		}
		if err := site.SetTimeouts(s.udp, s.tcp, s.reset); err != nil {
			return err
		}
		if s.dual {
			if err := b.nodes[s.node].AddIPv6(); err != nil {
				return err
			}
		}
		if s.noTCP {
			if err := site.Router.Script("iptables -w -I FORWARD -p tcp -j DROP"); err != nil {
				return err
			}
		}
		if b.delay > 0 {
			if _, err := b.l.InsertLink(ctx, site.Router, link.Both(link.Direction{Delay: b.delay / 2}), 1); err != nil {
				return err
			}
		}
		if _, err := site.Router.Start("tcpdump-"+s.node, "tcpdump", "-i", "wan0", "-n", "-U", "-s", "96", "-Z", "root",
			"-w", b.capture(s.node), "ip or (ip6 and not icmp6)"); err != nil {
			return err
		}
	}
	var edges []*lab.Node
	for i := range b.hub {
		n, err := b.l.AddCloudNode(fmt.Sprintf("edge-%d", i), lab.NodeOptions{})
		if err != nil {
			return err
		}
		edges = append(edges, n)
	}
	if err := b.l.WriteMembership(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for _, r := range b.l.Relays {
		if err := r.Start(); err != nil {
			return err
		}
		if err := r.WaitUp(ctx); err != nil {
			return err
		}
	}
	for name, n := range b.nodes {
		pod, err := b.start(ctx, n)
		if err != nil {
			return err
		}
		b.pods[name] = pod
	}
	b.edges = make([]*lab.Pod, len(edges))
	errs, few := make([]error, len(edges)), make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, n := range edges {
		few <- struct{}{}
		wg.Go(func() {
			b.edges[i], errs[i] = b.start(ctx, n)
			<-few
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// start starts a node with a pod that serves.
func (b *bench) start(ctx context.Context, n *lab.Node) (*lab.Pod, error) {
	if err := n.Start(); err != nil {
		return nil, err
	}
	if err := errors.Join(n.WaitPods(ctx), n.WaitReserved(ctx)); err != nil {
		return nil, err
	}
	pod, err := n.AddPod(ctx, "pod-"+n.Name)
	if err != nil {
		return nil, err
	}
	return pod, pod.Serve(ctx)
}

func (b *bench) capture(node string) string { return filepath.Join(b.l.Dir, node+".pcap") }

// live does what the states say.
func (b *bench) live(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.until())
	defer cancel()
	if b.nodes["quiet"] != nil {
		if err := b.get(ctx, "quiet", 5*time.Second); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, pod := range b.edges {
		wg.Go(func() {
			if pause(ctx, time.Duration(i)*time.Minute/time.Duration(len(b.edges))) == nil {
				if _, err := pod.Get(ctx, b.pods["hub"].IP4(), 10*time.Second); err != nil && ctx.Err() == nil {
					fmt.Println("hub:", err)
				}
			}
		})
	}
	for _, s := range b.states {
		if s.load == "" {
			continue
		}
		wg.Go(func() {
			var r struct{ Error string }
			err := b.pods["peer"].Tool(ctx, &r, "gaps", "--proto", s.load, "--size", "1250", "--interval", "10ms", "--duration",
				(b.watched + time.Minute).String(), b.pods[s.node].IP4().String())
			if err != nil && ctx.Err() == nil {
				fmt.Println(s.node+":", err)
			}
		})
	}
	for ok := true; ok; ok = pause(ctx, asked) == nil {
		if b.nodes["asked"] == nil {
			continue
		}
		if err := b.get(ctx, "asked", 5*time.Second); err != nil && ctx.Err() == nil {
			fmt.Println("asked:", err)
		}
	}
	return context.Cause(context.WithoutCancel(ctx))
}

// until is when the last state ends.
func (b *bench) until() (d time.Duration) {
	for _, s := range b.states {
		d = max(d, s.to)
	}
	return d
}

// get has the peer's pod send a request to a node's.
func (b *bench) get(ctx context.Context, node string, wait time.Duration) error {
	_, err := b.pods["peer"].Get(ctx, b.pods[node].IP4(), wait)
	return err
}

// wake waits until nothing was sent for the time of silence, and times the first answer of each node.
func (b *bench) wake(ctx context.Context, since time.Time) error {
	if b.silence == 0 {
		return nil
	}
	if err := pause(ctx, time.Until(since.Add(b.silence))); err != nil {
		return err
	}
	fmt.Printf("\nfirst answer after %v of silence:\n", b.silence)
	clock := b.product.Start()
	defer clock.Stop()
	first := func(name string) {
		began := time.Now()
		err := b.get(ctx, name, 10*time.Second)
		fmt.Printf("  %-10s %s  %4d ms, of which %4d count on this machine %v\n", name, began.Format("15:04:05.000"),
			time.Since(began).Milliseconds(), clock.Between(began, time.Now()).Milliseconds(), orNothing(err))
	}
	alone := b.states[0].node
	first(alone)
	fmt.Println("the others, all at the same time:")
	var wg sync.WaitGroup
	for name := range b.nodes {
		if name != "peer" && name != alone {
			wg.Go(func() { first(name) })
		}
	}
	wg.Wait()
	return nil
}

func orNothing(err error) string {
	if err == nil {
		return ""
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
