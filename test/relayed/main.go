// Command relayed measures what two sites have of each other through a relay alone: a TCP flow between pods beside one between the
// sites' routers (BBR, end to end over the same two legs), and what datagrams wait while such a flow runs. Each leg, between a site
// and the relay, has its round trip and its loss. `make bench-relayed` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

// leg is a site's way to the relay.
type leg struct {
	rtt  time.Duration
	loss float64
	mbit int64
}

func (l leg) String() string { return fmt.Sprintf("%v %g %% %d", l.rtt, 100*l.loss, l.mbit) }

const ms = time.Millisecond

// cells are the legs of the sender and of the receiver.
var cells = [][2]leg{
	{{40 * ms, 0, 100}, {40 * ms, 0, 100}},
	{{40 * ms, .01, 100}, {40 * ms, 0, 100}},
	{{40 * ms, .01, 100}, {40 * ms, .01, 100}},
	{{10 * ms, .01, 100}, {150 * ms, 0, 100}},
	{{150 * ms, .01, 100}, {10 * ms, 0, 100}},
	{{150 * ms, .01, 100}, {10 * ms, .01, 100}},
	{{40 * ms, 0, 100}, {40 * ms, 0, 5}}, // what does not get on waits at the relay
}

func main() {
	n := flag.Int("n", 3, "rounds of each cell")
	length := flag.Duration("time", 8*time.Second, "length of a flow")
	only := flag.Int("cell", 0, "only this cell, counted from 1")
	bin := flag.String("bin", "", "directory of agents, relays and tools; default: bin")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *only < 0 || *only > len(cells) {
		fmt.Fprintf(os.Stderr, "relayed: --cell %d: there are %d\n", *only, len(cells))
		os.Exit(2)
	}
	if *only > 0 {
		cells = cells[*only-1 : *only]
	}
	b := bench{n: *n, length: *length}
	if err := b.run(ctx, *bin); err != nil {
		fmt.Fprintln(os.Stderr, "relayed:", err)
		os.Exit(1)
	}
}

type bench struct {
	n      int
	length time.Duration

	l     *lab.Lab
	sites [2]*lab.Site
	nodes [2]*lab.Node
	pods  [2]*lab.Pod
	links [2]*lab.Link
}

func (b *bench) run(ctx context.Context, bin string) (err error) {
	if b.l, err = lab.New(lab.Options{Bin: bin}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.l.Close()) }()
	if err := b.build(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, b.l.Logs(20))
	}
	fmt.Println("Mbit/s, mean ± standard error; beside no flow a ping's median round trip, what the 99th of 100 adds, and the lost ones; what the\n" +
		"99th adds beside a flow, and the flow's own round trip")
	fmt.Printf("%-14s %-14s %14s %14s %7s %9s %8s %8s %12s %9s %s\n", "sender", "receiver", "bare BBR", "relayed", "share", "ping", "p99", "lost", "p99 of busy", "flow's", "datagrams")
	for _, c := range cells {
		if err := b.cell(ctx, c); err != nil {
			return fmt.Errorf("%w\n%s", err, b.l.Logs(20))
		}
	}
	return nil
}

func (b *bench) build(ctx context.Context) error {
	relay, err := b.l.AddRelay("relay")
	if err != nil {
		return err
	}
	for i, name := range []string{"sender", "receiver"} {
		if b.sites[i], err = b.l.AddSite("site-"+name, lab.Symmetric); err != nil {
			return err
		}
		if b.nodes[i], err = b.sites[i].AddNode(name, lab.NodeOptions{}); err != nil {
			return err
		}
		if b.links[i], err = b.l.InsertLink(ctx, b.sites[i].Router, link.Config{}, uint64(i+1)); err != nil {
			return err
		}
	}
	if err := b.l.WriteMembership(); err != nil {
		return err
	}
	if err := errors.Join(relay.Start(), relay.WaitUp(ctx)); err != nil {
		return err
	}
	if err := b.restart(ctx); err != nil {
		return err
	}
	for i, n := range b.nodes {
		if b.pods[i], err = n.AddPod(ctx, "pod-"+n.Name); err != nil {
			return err
		}
	}
	if err := b.sites[1].Router.Script("iptables -w -I INPUT -p tcp --dport 5201 -j ACCEPT"); err != nil {
		return err
	}
	for _, ns := range []*lab.NS{b.pods[1].NS, b.sites[1].Router} {
		if _, err := ns.Start("iperf3-"+ns.Name, "iperf3", "-s"); err != nil {
			return err
		}
	}
	return nil
}

// restart starts both agents, again where they run.
func (b *bench) restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, n := range b.nodes {
		if n.Agent != nil {
			if err := n.Agent.Stop(); err != nil {
				return err
			}
		}
		if err := errors.Join(n.Start(), n.WaitPods(ctx), n.WaitReserved(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// cell measures a pair of legs, the two flows in turns.
func (b *bench) cell(ctx context.Context, legs [2]leg) error {
	for i, l := range legs {
		d := link.Direction{Rate: l.mbit * 1e6, QueueTime: 100 * ms, Delay: l.rtt / 2, Loss: l.loss}
		if err := b.links[i].Set(ctx, link.Both(d)); err != nil {
			return err
		}
	}
	if err := b.restart(ctx); err != nil { // a session measures its round trip once, when it begins
		return err
	}
	var bare, relayed, idle, busy, own []float64
	sent := 0
	quiet := func() error {
		all, n, err := b.pings(ctx, 4*time.Second)
		idle, sent = append(idle, all...), sent+n
		return err
	}
	if err := quiet(); err != nil { // has the path found, too
		return err
	}
	idle, sent = nil, 0
	for range b.n {
		if err := quiet(); err != nil {
			return err
		}
		x, _, err := b.iperf(ctx, b.sites[0].Router, b.sites[1].WAN.String(), "-C", "bbr")
		if err != nil {
			return err
		}
		bare = append(bare, x)
		type pinged struct {
			all []float64
			err error
		}
		beside := make(chan pinged, 1)
		go func() {
			time.Sleep(2 * time.Second) // as iperf3's -O
			all, _, err := b.pings(ctx, b.length-time.Second)
			beside <- pinged{all, err}
		}()
		x, rtt, err := b.iperf(ctx, b.pods[0].NS, b.pods[1].IP4().String())
		p := <-beside
		if err := errors.Join(err, p.err); err != nil {
			return err
		}
		relayed, busy, own = append(relayed, x), append(busy, p.all...), append(own, rtt)
	}
	st, err := b.nodes[0].Status(ctx)
	if err != nil {
		return err
	}
	peer := st.Peer(b.nodes[1].Name)
	if peer.Path != "relayed" {
		return fmt.Errorf("the path is %s", peer.Path)
	}
	slices.Sort(idle)
	slices.Sort(busy)
	before := idle[len(idle)/2]
	m, e := mean(bare)
	rm, re := mean(relayed)
	trip, _ := mean(own)
	fmt.Printf("%-14s %-14s %7.1f ± %-4.1f %7.1f ± %-4.1f %7.2f %6.0f ms %5.0f ms %6.1f %% %9.0f ms %6.0f ms %s\n", legs[0], legs[1], m, e, rm, re, rm/m,
		before, p99(idle)-before, 100*(1-float64(len(idle))/float64(sent)), p99(busy)-before, trip, peer.Datagrams)
	return nil
}

// iperf is the rate of a flow in Mbit/s, without its first two seconds, and its mean round trip in ms.
func (b *bench) iperf(ctx context.Context, from *lab.NS, to string, more ...string) (mbit, rtt float64, err error) {
	args := append([]string{"iperf3", "-c", to, "-J", "-O", "2", "-t", fmt.Sprint(b.length.Seconds())}, more...)
	out, err := from.Run(ctx, args...)
	var r struct {
		Error string
		End   struct {
			Streams []struct {
				Sender struct {
					RTT float64 `json:"mean_rtt"` // µs
				} `json:"sender"`
			} `json:"streams"`
			Received struct {
				BPS float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if jerr := json.Unmarshal([]byte(out), &r); jerr != nil || err != nil || r.Error != "" || len(r.End.Streams) == 0 {
		return 0, 0, fmt.Errorf("iperf3 from %s to %s: %w %s", from.Name, to, errors.Join(err, jerr), r.Error)
	}
	return r.End.Received.BPS / 1e6, r.End.Streams[0].Sender.RTT / 1000, nil
}

// p99 is the 99th of 100 values, which are sorted.
func p99(all []float64) float64 { return all[min(len(all)*99/100, len(all)-1)] }

// pings are round trips in ms, of so many that were sent. Lost ones are none.
func (b *bench) pings(ctx context.Context, length time.Duration) (all []float64, sent int, err error) {
	const every = 20 * ms
	sent = int(length / every)
	out, err := b.pods[0].NS.Run(ctx, "ping", "-n", "-i", fmt.Sprint(every.Seconds()), "-c", fmt.Sprint(sent), "-W", "2", b.pods[1].IP4().String())
	for line := range strings.Lines(out) {
		if _, after, found := strings.Cut(line, "time="); found {
			x, perr := strconv.ParseFloat(strings.Fields(after)[0], 64)
			all, err = append(all, x), errors.Join(err, perr)
		}
	}
	return all, sent, err
}

// mean of values, and its standard error.
func mean(all []float64) (m, e float64) {
	for _, x := range all {
		m += x / float64(len(all))
	}
	for _, x := range all {
		e += (x - m) * (x - m)
	}
	return m, math.Sqrt(e / float64(max(len(all)-1, 1)) / float64(len(all)))
}
