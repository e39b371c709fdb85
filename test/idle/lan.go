package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"edgemesh/test/cpu"
	"edgemesh/test/fair"
	"edgemesh/test/lab"
)

// neighbours prints what an agent's processor time is while it proves LAN paths to so many nodes, and while it has none: the difference is theirs.
// What the kernel does for its packets in its stead counts as well. Nobody's pods say anything since each of them met it.
func neighbours(ctx context.Context, bin string, n int, warm, d time.Duration) error {
	alone, err := lanOf(ctx, bin, 0, warm, d)
	if err != nil {
		return err
	}
	with, err := lanOf(ctx, bin, n, warm, d)
	if err != nil {
		return err
	}
	each := (with - alone) / float64(n)
	fmt.Printf("an agent in %v: %.3f %% of a core alone, %.3f %% with %d idle neighbours: %.5f %% each, %.1f %% for 1,000\n",
		d, 100*alone, 100*with, n, 100*each, 100_000*each)
	return nil
}

// lanOf is the share of a core that a node's agent takes which has n neighbours on its LAN, all by the native path.
func lanOf(ctx context.Context, bin string, n int, warm, d time.Duration) (share float64, err error) {
	l, err := lab.New(lab.Options{Bin: bin, Product: &fair.Product{}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	r, err := l.AddRelay("relay-1")
	if err != nil {
		return 0, err
	}
	site, err := l.AddSite("site", lab.EIM)
	if err != nil {
		return 0, err
	}
	var nodes []*lab.Node
	for i := range n + 1 {
		node, err := site.AddNode(fmt.Sprintf("n-%d", i), lab.NodeOptions{})
		if err != nil {
			return 0, err
		}
		nodes = append(nodes, node)
	}
	if err := errors.Join(l.WriteMembership(), r.Start(), r.WaitUp(ctx)); err != nil {
		return 0, err
	}
	b := bench{}
	pods, errs, few := make([]*lab.Pod, len(nodes)), make([]error, len(nodes)), make(chan struct{}, 4)
	var wg sync.WaitGroup
	for i, node := range nodes {
		few <- struct{}{}
		wg.Go(func() {
			pods[i], errs[i] = b.start(ctx, node)
			<-few
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	for i, pod := range pods[1:] {
		if _, err := pods[0].Get(ctx, pod.IP4(), 20*time.Second); err != nil {
			return 0, err
		}
		if _, err := nodes[0].WaitPath(ctx, nodes[i+1], "native"); err != nil {
			return 0, err
		}
	}
	if err := pause(ctx, warm); err != nil {
		return 0, err
	}
	before, err := cpu.Process(nodes[0].Agent.PID())
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := pause(ctx, d); err != nil {
		return 0, err
	}
	after, err := cpu.Process(nodes[0].Agent.PID())
	return (after - before).Seconds() / time.Since(began).Seconds(), err
}
