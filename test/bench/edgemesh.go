package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
)

// ourPaths are our carriers and the path that each has to take.
func ourPaths() map[string]string {
	return map[string]string{
		report.Direct:  "direct",
		report.TCP:     "direct",
		report.Before:  "direct",
		report.Relayed: "relayed",
		report.Native:  "native",
		report.VXLAN:   "vxlan",
	}
}

// setUpEdgeMesh starts two agents, and a relay where there is none yet. On a direct
// path the relay only introduces them; relayed ones cannot reach each other.
func setUpEdgeMesh(ctx context.Context, l *lab.Lab, u underlay, before, name, want string) (*carrier, error) {
	if len(l.Relays) == 0 {
		if _, err := l.AddRelay("relay"); err != nil {
			return nil, err
		}
	}
	relay := l.Relays[0]
	nodes, err := addNodes(l, u, name)
	if err != nil {
		return nil, err
	}
	if name == report.Before {
		for _, n := range nodes {
			n.Programs = before
		}
	}
	c := &carrier{name: name}
	if c.link, err = u.join(ctx, l, nodes[0]); err != nil {
		return nil, err
	}
	if name == report.Relayed {
		if err := part(nodes[0], nodes[1]); err != nil {
			return nil, err
		}
	}
	if err := l.WriteMembership(); err != nil {
		return nil, err
	}
	if err := startAgents(ctx, relay, nodes[:]...); err != nil {
		return nil, err
	}
	c.tunnel = []*lab.Process{nodes[0].Agent, nodes[1].Agent}
	if name == report.Relayed {
		c.tunnel = append(c.tunnel, relay.Process)
	}
	c.path = func(ctx context.Context) (string, error) {
		s, err := nodes[0].Status(ctx)
		p := s.Peer(nodes[1].Name)
		return p.Path + " " + p.Transport, err
	}
	if err := c.addPods(ctx, nodes[0], nodes[1]); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if err := n.WaitReserved(ctx); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	for i, n := range nodes {
		if _, err := n.WaitPath(ctx, nodes[1-i], want); err != nil {
			return nil, err
		}
	}
	c.pathAfter = time.Since(start)
	return c, nil
}

func addNodes(l *lab.Lab, u underlay, name string) (nodes [2]*lab.Node, err error) {
	for i := range nodes {
		if nodes[i], err = u.node(l, fmt.Sprintf("%s-%c", name, 'a'+i), lab.NodeOptions{}); err != nil {
			return nodes, err
		}
		if name == report.VXLAN { // on a LAN it is second choice
			nodes[i].Config.LAN = map[string]any{"native": false}
		}
		if name == report.TCP {
			if err = nodes[i].Script("for t in iptables ip6tables; do $t -w -A INPUT -i " + nodes[i].Uplink + " -p udp -j DROP; done"); err != nil {
				return nodes, err
			}
		}
	}
	return nodes, nil
}

// startAgents starts the relay if need be, and the agents, and waits until pods can
// be made.
func startAgents(ctx context.Context, relay *lab.Relay, nodes ...*lab.Node) error {
	if relay.Process == nil {
		if err := relay.Start(); err != nil {
			return err
		}
		if err := relay.WaitUp(ctx); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.Start(); err != nil {
			return err
		}
		if err := n.WaitPods(ctx); err != nil {
			return err
		}
	}
	return nil
}

// part keeps two nodes from reaching each other by a route: packets of others pay
// nothing for it, as they would for a rule.
func part(a, b *lab.Node) error {
	return bothDirections(a, b, func(from, to *lab.Node) error {
		addr6, err := to.Run(context.Background(), "sh", "-c",
			"ip -6 -o addr show dev "+to.Uplink+" scope global | awk '{sub(\"/.*\", \"\", $4); print $4}'")
		return errors.Join(err, from.Script(
			fmt.Sprintf("ip route add unreachable %s", to.Addr),
			fmt.Sprintf("ip -6 route add unreachable %s", addr6)))
	})
}
