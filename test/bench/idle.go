package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
)

// idleRange holds the blocks of all members, block i being its ith /24. The lab's name server stands outside it.
const idleRange = "10.192.0.0/11"

func idleBlock(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 192+i/256, i%256) }

// idle watches an agent with many members in its file, of which one and a relay
// are there.
func (b *bench) idle(ctx context.Context, p *report.Part) error {
	if err := b.strike(); err != nil { // its idle agents would be bystanders
		return err
	}
	return b.inLab(ctx, lab.Options{ClusterCIDRs: []string{idleRange}}, func(l *lab.Lab) error {
		relay, err := l.AddRelay("relay")
		if err != nil {
			return err
		}
		var nodes [2]*lab.Node
		for i := range nodes {
			if nodes[i], err = l.AddCloudNode(fmt.Sprintf("idle-%c", 'a'+i),
				lab.NodeOptions{PodCIDRs: []string{idleBlock(i)}}); err != nil {
				return err
			}
		}
		if err := addMembers(&l.Cluster, b.plan.members-len(nodes)); err != nil {
			return err
		}
		if err := l.WriteMembership(); err != nil {
			return err
		}
		if err := startAgents(ctx, relay, nodes[:]...); err != nil {
			return err
		}
		row := p.At(report.Direct, float64(b.plan.members))
		for range b.plan.rounds {
			if err := restart(ctx, nodes[0], b.plan.members-1, row); err != nil {
				return err
			}
		}
		b.log.printf("started in %.2f s, idle for %s", last(row, report.StartReady), b.plan.quiet+b.plan.idle)
		if err := b.watch(ctx, nodes[0].Agent, p, row); err != nil {
			return err
		}
		return errors.Join(b.logMemory("agent", nodes[0].Agent), b.logMemory("relay", relay.Process))
	})
}

// logMemory prints what a process holds, and how much of that are pages of its program, which the kernel can drop.
func (b *bench) logMemory(what string, p *lab.Process) error {
	rss, err1 := memoryMB(p.PID(), "VmRSS")
	file, err2 := memoryMB(p.PID(), "RssFile")
	b.log.printf("%s: %.1f MB, %.1f of them the program's", what, rss, file)
	return errors.Join(err1, err2)
}

// addMembers enters n nodes that are not there.
func addMembers(c *lab.Cluster, n int) error {
	have := len(c.Nodes)
	for i := have; i < have+n; i++ {
		_, public, err := crypto.GenerateEd25519Key(rand.Reader)
		if err != nil {
			return fmt.Errorf("member key: %w", err)
		}
		id, err := peer.IDFromPublicKey(public)
		if err != nil {
			return fmt.Errorf("member key: %w", err)
		}
		c.Nodes = append(c.Nodes,
			lab.Member{Name: fmt.Sprintf("absent-%d", i), PeerID: id.String(), PodCIDRs: []string{idleBlock(i)}})
	}
	return nil
}

// restart enters how long the agent takes until pods can be made, and until it
// lists all peers and holds its relay's reservation.
func restart(ctx context.Context, n *lab.Node, peers int, row *report.Row) error {
	ctx, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	if err := n.Agent.Stop(); err != nil {
		return err
	}
	subnet := filepath.Join(n.Config.RuntimeDir, "subnet.json")
	if err := os.Remove(subnet); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restart: %w", err)
	}
	start := time.Now()
	if err := n.Start(); err != nil {
		return err
	}
	if err := lab.Until(ctx, 5*time.Millisecond, func() error {
		_, err := os.Stat(subnet)
		return err
	}); err != nil {
		return err
	}
	row.Add(report.StartPods, time.Since(start).Seconds())
	if err := lab.Until(ctx, 10*time.Millisecond, func() error {
		s, err := n.Status(ctx)
		switch {
		case err != nil:
			return err
		case len(s.Peers) != peers:
			return fmt.Errorf("%d of %d peers are listed", len(s.Peers), peers)
		case len(s.Relays) != 1 || !s.Relays[0].Reserved:
			return errors.New("no reservation yet")
		}
		return nil
	}); err != nil {
		return err
	}
	row.Add(report.StartReady, time.Since(start).Seconds())
	return nil
}

// watch enters what an agent uses that does nothing.
func (b *bench) watch(ctx context.Context, agent *lab.Process, p *report.Part, row *report.Row) error {
	if err := rest(ctx, b.plan.quiet); err != nil {
		return err
	}
	before, err := processCPU(agent.PID())
	if err != nil {
		return err
	}
	start := time.Now()
	others, err := busyWhile(func() error { return rest(ctx, b.plan.idle) })
	if err != nil {
		return err
	}
	after, err := processCPU(agent.PID())
	if err != nil {
		return err
	}
	rss, err := memoryMB(agent.PID(), "VmRSS")
	if err != nil {
		return err
	}
	p.Others = max(p.Others, others)
	row.Add(report.IdleCPU, (after-before)/time.Since(start).Seconds())
	row.Add(report.IdleMB, rss)
	b.log.printf("%d members: %.1f MB, %.2f %% of a CPU", b.plan.members, rss, 100*last(row, report.IdleCPU))
	return nil
}
