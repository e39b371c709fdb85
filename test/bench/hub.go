package main

import (
	"context"
	"fmt"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

// hubLink is in front of the hub.
const hubLink = "rate=100M queue=50ms delay=10ms"

// hub watches the memory of an agent whose pod scrapes many edges.
func (b *bench) hub(ctx context.Context, p *report.Part) error {
	if err := b.strike(); err != nil {
		return err
	}
	for range b.plan.hubRounds {
		for _, name := range b.plan.hubCarriers {
			if err := b.inLab(ctx, lab.Options{}, func(l *lab.Lab) error { return b.hubOf(ctx, l, p, name) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) hubOf(ctx context.Context, l *lab.Lab, p *report.Part, name string) error {
	relay, err := l.AddRelay("relay")
	if err != nil {
		return err
	}
	var edges []*lab.Node
	node := func(name string) (*lab.Node, error) { return l.AddCloudNode(name, lab.NodeOptions{}) }
	hub, err := node("hub")
	for i := 0; err == nil && i < b.plan.edges; i++ {
		var n *lab.Node
		n, err = node(fmt.Sprintf("edge-%d", i))
		edges = append(edges, n)
	}
	if err != nil {
		return err
	}
	if name == report.Before {
		for _, n := range append(edges, hub) {
			n.Programs = b.before
		}
	}
	d, err := link.Parse(hubLink)
	if err != nil {
		return err
	}
	if _, err := l.InsertLink(ctx, hub.NS, link.Both(d), 1); err != nil {
		return err
	}
	if err := l.WriteMembership(); err != nil {
		return err
	}
	if err := startAgents(ctx, relay, append(edges, hub)...); err != nil {
		return err
	}
	var pods []*lab.Pod
	for _, n := range edges {
		pod, err := n.AddPod(ctx, "metrics")
		if err == nil {
			err = pod.Serve(ctx)
		}
		if err != nil {
			return err
		}
		pods = append(pods, pod)
	}
	client, err := hub.AddPod(ctx, "client")
	if err != nil {
		return err
	}
	if err := rest(ctx, b.plan.hubEvery); err != nil {
		return err
	}
	before, err := memoryMB(hub.Agent.PID(), "RssAnon")
	if err != nil {
		return err
	}
	var most float64
	for range b.plan.hubTurns {
		start := time.Now()
		for _, pod := range pods {
			if _, err := client.Get(ctx, pod.IP4(), setUpTime); err != nil {
				return err
			}
		}
		if err := rest(ctx, time.Until(start.Add(b.plan.hubEvery))); err != nil {
			return err
		}
		now, err := memoryMB(hub.Agent.PID(), "RssAnon")
		if err != nil {
			return err
		}
		most = max(most, now)
	}
	b.log.printf("%s: %.1f MB with nothing to do, %.2f more for each of %d edges", name, before, (most-before)/float64(len(pods)), len(pods))
	p.At(name, float64(len(pods))).Add(report.PeerMB, (most-before)/float64(len(pods)))
	return nil
}

// rest waits for d.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
