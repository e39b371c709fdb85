package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
)

// egressFlow is the duration of one flow.
const egressFlow = time.Second

// egressMethod recognizes packets to peers on the node they leave.
type egressMethod struct {
	name string
	// set returns a script and the file that it reads, which make the kernel know
	// the peers; unset removes them again.
	set   func(e egressWorld) (script, file string)
	unset string
}

// egressWorld is what the kernel has to know: the peers' blocks, the measured one
// last, and the address of its node.
type egressWorld struct {
	own   string
	peers []string
	via   string
}

// egressBlock is the block of the ith peer that is not there.
func egressBlock(i int) string { return fmt.Sprintf("100.%d.%d.0/24", 64+i/256, i%256) }

// egressMethods are the usual two and our own. What is no peer of the range is
// dropped by all.
func egressMethods() []egressMethod {
	return []egressMethod{
		{name: "iptables", set: iptablesPerPeer,
			unset: "iptables -w -F FORWARD\niptables -w -F peers\niptables -w -X peers"},
		{name: "ipset", set: ipsetOfPeers,
			unset: "iptables -w -F FORWARD\niptables -w -F peers\niptables -w -X peers\nipset destroy peers"},
		{name: "routes", set: routePerPeer,
			unset: "ip rule del pref 5210\nip route flush table 5210"},
	}
}

func iptablesPerPeer(e egressWorld) (script, file string) {
	lines := []string{"*filter", ":peers - [0:0]", "-A FORWARD -s " + e.own + " -j peers"}
	for _, p := range e.peers {
		lines = append(lines, "-A peers -d "+p+" -j ACCEPT")
	}
	return "iptables-restore -w -n <%s", strings.Join(append(lines, "-A peers -j DROP", "COMMIT", ""), "\n")
}

func ipsetOfPeers(e egressWorld) (script, file string) {
	lines := []string{fmt.Sprintf("create peers hash:net maxelem %d", 2*len(e.peers)+1024)}
	for _, p := range e.peers {
		lines = append(lines, "add peers "+p)
	}
	return "ipset restore <%s\niptables -w -N peers\niptables -w -A peers -m set --match-set peers dst -j ACCEPT\n" +
			"iptables -w -A peers -j DROP\niptables -w -A FORWARD -s " + e.own + " -j peers", strings.Join(append(lines, ""),
			"\n")
}

// routePerPeer is what the agent has in its table, with routes for all peers.
func routePerPeer(e egressWorld) (script, file string) {
	lines := []string{"route add blackhole 100.64.0.0/10 metric 4242 table 5210"}
	for _, p := range e.peers {
		lines = append(lines, "route add "+p+" via "+e.via+" table 5210")
	}
	return "ip -batch %s\nip rule add pref 5210 lookup 5210", strings.Join(append(lines, ""), "\n")
}

// egress measures what a node does with each packet that leaves, by the number of
// its peers.
func (b *bench) egress(ctx context.Context, p *report.Part) error {
	p.Flow = egressFlow
	if err := b.strike(); err != nil {
		return err
	}
	return b.inLab(ctx, lab.Options{}, func(l *lab.Lab) error {
		carriers, err := b.setUpAll(ctx, l, underlay{}, []string{veth})
		if err != nil {
			return err
		}
		c := carriers[0]
		for round := range b.plan.rounds {
			for _, n := range b.plan.peers {
				for _, w := range egressMethods() {
					row := p.At(w.name, float64(n))
					if err := b.try(ctx, p, row, w.name, func(ctx context.Context, round *report.Row) (float64, error) {
						return 0, c.egressRound(ctx, b.plan, l.Dir, w, n, round)
					}); err != nil {
						return err
					}
					b.log.printf("round %d of %d  %5d peers  %-8s %6.2f Gbit/s, answer %4.0f µs, applied in %.0f ms",
						round+1, b.plan.rounds, n, w.name, last(row, report.FlowGbps), last(row, report.AnswerTCP),
						last(row, report.ApplyMs))
				}
			}
		}
		return nil
	})
}

// egressRound measures one method with n peers.
func (c *carrier) egressRound(ctx context.Context, p plan, dir string, w egressMethod, n int, row *report.Row) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.answers+egressFlow+3*setUpTime)
	defer cancel()
	node, peer := c.client.Node, c.server.Node
	world := egressWorld{own: node.PodCIDRs[0], via: peer.Addr.String()}
	for i := range n - 1 {
		world.peers = append(world.peers, egressBlock(i))
	}
	world.peers = append(world.peers, peer.PodCIDRs[0])
	script, content := w.set(world)
	file := filepath.Join(dir, "peers")
	if err := lab.ReplaceFile(file, content); err != nil {
		return err
	}
	start := time.Now()
	if err := node.Script(fmt.Sprintf(script, file)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Script(w.unset)) }()
	row.Add(report.ApplyMs, time.Since(start).Seconds()*1000)
	f, err := c.flow(ctx, egressFlow, 1)
	if err != nil {
		return err
	}
	us, err := c.answers(ctx, "tcp", p.answers)
	if err != nil {
		return err
	}
	row.Add(report.FlowGbps, f.rate()/1e9)
	row.Add(report.AnswerTCP, us)
	return nil
}
