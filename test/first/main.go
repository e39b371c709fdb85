// Command first measures the first request to a peer never met: from a pod of one NATed site to pods of another, through a relay in
// the middle, with the round trip on the uplink of the first site. It says how many round trips a request took, from the pod's
// connect() to the answer, and how busy the processors of this machine were. `make bench-first` runs it.
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

	"edgemesh/test/cpu"
	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

func main() {
	delays := flag.String("rtt", "20ms,80ms,300ms", "round trips on the uplink, separated by commas")
	kinds := flag.String("over", "udp,tcp", "what reaches the relay: udp (and TCP beside it), tcp alone")
	n := flag.Int("n", 20, "first contacts of each kind")
	hub := flag.Int("hub", 50, "first contacts of a hub in one second, at 80 ms; 0: none")
	rest := flag.Duration("rest", 8*time.Second, "time between reservations and the first request")
	bin := flag.String("bin", "", "directory of agents, relays and tools; default: bin")
	relays := flag.String("relays", "", "directory of other relays")
	keep := flag.String("keep", "", "directory for logs")
	far := flag.Bool("far", false, "put the round trip on the uplink of those who are called")
	both := flag.Bool("both", false, "measure peers never met alone, with both ends calling at the same time, too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var rtts []time.Duration
	for _, s := range strings.Split(*delays, ",") {
		d, err := time.ParseDuration(s)
		if err != nil {
			fmt.Fprintln(os.Stderr, "first: -rtt:", err)
			os.Exit(2)
		}
		rtts = append(rtts, d)
	}
	fmt.Printf("%-34s %6s %8s %8s %8s %8s %8s %7s %6s\n", "", "rtt", "median", "least", "p90", "p99", "most", "failed", "CPUs")
	for _, kind := range strings.Split(*kinds, ",") {
		b := bench{kind: kind, rtts: rtts, n: *n, hub: *hub, rest: *rest, relays: *relays, keep: *keep, far: *far, both: *both}
		if err := b.run(ctx, *bin); err != nil {
			fmt.Fprintln(os.Stderr, "first:", err)
			os.Exit(1)
		}
	}
}

// bench is a lab: one node in a site of its own, and peers in another one.
type bench struct {
	kind   string
	rtts   []time.Duration
	n, hub int
	rest   time.Duration
	relays string
	keep   string
	far    bool
	both   bool

	l     *lab.Lab
	here  *lab.Node
	peers []*lab.Node
	pod   *lab.Pod
	pods  map[string]*lab.Pod // by node
	link  *lab.Link
}

func (b *bench) run(ctx context.Context, bin string) (err error) {
	if b.l, err = lab.New(lab.Options{Bin: bin}); err != nil {
		return err
	}
	defer func() {
		if b.keep != "" {
			out, kerr := exec.CommandContext(ctx, "cp", "-r", b.l.Dir, filepath.Join(b.keep, b.kind)).CombinedOutput()
			if kerr != nil {
				err = errors.Join(err, fmt.Errorf("keep logs: %w: %s", kerr, out))
			}
		}
		if cerr := b.l.Close(); err == nil {
			err = cerr
		}
	}()
	if err := b.build(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, b.l.Logs(20))
	}
	for _, rtt := range b.rtts {
		if err := b.link.Set(ctx, link.Both(link.Direction{Delay: rtt / 2})); err != nil {
			return err
		}
		for _, s := range []struct {
			what  string
			n     int
			every time.Duration
			known bool // the state of the time before is kept
			call  bool // peers call at the same time
			runs  bool
		}{
			{"a peer never met", b.n, time.Second, false, false, true},
			{"both call at the same time", b.n, time.Second, false, true, b.both},
			{"after both agents restarted", b.n, time.Second, true, false, !b.both},
			{fmt.Sprintf("a hub, %d in a second", b.hub), b.hub, time.Second / time.Duration(max(b.hub, 1)), false, false, b.hub > 0 && !b.both && rtt == 80*time.Millisecond},
		} {
			if !s.runs {
				continue
			}
			if err := b.restart(ctx, s.n, s.known); err != nil {
				return fmt.Errorf("%w\n%s", err, b.l.Logs(20))
			}
			if err := b.measure(ctx, b.kind+": "+s.what, rtt, b.peers[:s.n], s.every, s.call); err != nil {
				return err
			}
		}
	}
	warnings, err := b.l.Warnings()
	for _, w := range warnings {
		fmt.Println(w)
	}
	return err
}

// build makes everything but agents' processes.
func (b *bench) build(ctx context.Context) error {
	relay, err := b.l.AddRelay("relay")
	if err != nil {
		return err
	}
	relay.Programs = b.relays
	site, err := b.l.AddSite("site-here", lab.EIM)
	if err != nil {
		return err
	}
	there, err := b.l.AddSite("site-there", lab.EIM)
	if err != nil {
		return err
	}
	if b.here, err = site.AddNode("here", lab.NodeOptions{}); err != nil {
		return err
	}
	for i := range max(b.n, b.hub) {
		p, err := there.AddNode(fmt.Sprintf("peer-%d", i), lab.NodeOptions{})
		if err != nil {
			return err
		}
		b.peers = append(b.peers, p)
	}
	if b.kind == "tcp" {
		for _, s := range []*lab.Site{site, there} {
			if err := s.Router.Script("iptables -w -I FORWARD -p udp -j DROP"); err != nil {
				return err
			}
		}
	}
	slow := site
	if b.far {
		slow = there
	}
	if b.link, err = b.l.InsertLink(ctx, slow.Router, link.Config{}, 1); err != nil {
		return err
	}
	if err := b.l.WriteMembership(); err != nil {
		return err
	}
	if err := relay.Start(); err != nil {
		return err
	}
	b.pods = map[string]*lab.Pod{}
	return relay.WaitUp(ctx)
}

// restart starts all agents that take part, those that run again. Unless known they remember their keys alone.
func (b *bench) restart(ctx context.Context, n int, known bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	nodes := append([]*lab.Node{b.here}, b.peers[:n]...)
	for _, x := range append([]*lab.Node{b.here}, b.peers...) {
		if x.Agent == nil || !x.Agent.Running() {
			continue
		}
		if err := x.Agent.Stop(); err != nil {
			return err
		}
		if !known {
			if err := forget(x.Config.StateDir); err != nil {
				return err
			}
		}
	}
	errs, few := make([]error, len(nodes)), make(chan struct{}, 4)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, x := range nodes {
		few <- struct{}{}
		wg.Go(func() {
			defer func() { <-few }()
			if errs[i] = x.Start(); errs[i] == nil {
				errs[i] = errors.Join(x.WaitPods(ctx), x.WaitReserved(ctx))
			}
			mu.Lock()
			pod := b.pods[x.Name]
			mu.Unlock()
			if errs[i] != nil || pod != nil {
				return
			}
			if pod, errs[i] = x.AddPod(ctx, "pod-"+x.Name); errs[i] == nil {
				errs[i] = pod.Serve(ctx)
			}
			mu.Lock()
			b.pods[x.Name] = pod
			mu.Unlock()
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	b.pod = b.pods[b.here.Name]
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(b.rest):
		return nil
	}
}

// forget empties a state directory except for the key.
func forget(dir string) error {
	all, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.Name() != "identity.key" {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure sends each peer one request, which call at the same time if they are to, and prints how many round trips they took.
func (b *bench) measure(ctx context.Context, what string, rtt time.Duration, peers []*lab.Node, every time.Duration, call bool) error {
	args := []string{"first", "--every", every.String()}
	for _, p := range peers {
		args = append(args, fmt.Sprintf("http://%s:%d/", b.pods[p.Name].IP4(), lab.ServePort))
	}
	var got []struct {
		URL, Error string
		Ms         float64
	}
	var calls sync.WaitGroup
	errs := make([]error, len(peers)+1)
	if call {
		for i, p := range peers {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * every)
				errs[i] = b.pods[p.Name].Tool(ctx, nil, "first", fmt.Sprintf("http://%s:%d/", b.pod.IP4(), lab.ServePort))
			})
		}
	}
	before, spent := cpu.Now(), b.spent()
	errs[len(peers)] = b.pod.Tool(ctx, &got, args...)
	calls.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	busy, each := cpu.Now().Since(before).Share(), b.spent()
	for who := range each {
		each[who] = (each[who] - spent[who]) / time.Duration(len(peers))
	}
	var trips []float64
	failed := 0
	for _, g := range got {
		if g.Error != "" {
			failed++
			fmt.Println(g.URL, g.Error)
			continue
		}
		trips = append(trips, g.Ms/1000/rtt.Seconds())
		if b.keep != "" {
			fmt.Printf("  %s %.0f ms\n", g.URL, g.Ms)
		}
	}
	if len(trips) == 0 {
		return errors.New("no request was answered")
	}
	slices.Sort(trips)
	at := func(p float64) float64 { return trips[min(int(p*float64(len(trips))), len(trips)-1)] }
	fmt.Printf("%-34s %6v %8.2f %8.2f %8.2f %8.2f %8.2f %7d %4.0f %%\n", what, rtt, at(.5), trips[0], at(.9), at(.99), trips[len(trips)-1], failed, 100*busy)
	if every < time.Second {
		fmt.Printf("  processor time a contact: here %v, peers %v, relay %v\n", each["here"], each["peers"], each["relay"])
	}
	return nil
}

// spent is the processor time that the agents and the relay have taken, by who: here, peers (all of them) and relay.
func (b *bench) spent() map[string]time.Duration {
	out := map[string]time.Duration{}
	add := func(who string, p *lab.Process) {
		if p != nil && p.Running() {
			d, _ := cpu.Process(p.PID())
			out[who] += d
		}
	}
	add("here", b.here.Agent)
	add("relay", b.l.Relays[0].Process)
	for _, p := range b.peers {
		add("peers", p.Agent)
	}
	return out
}
