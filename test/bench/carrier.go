package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

const setUpTime = 20 * time.Second // for one carrier, until its pods reach each other

// carrier connects two nodes, with a pod on each, by one of the programs or kernel features that are compared.
type carrier struct {
	name           string
	client, server *lab.Pod
	tunnel         []*lab.Process // what carries packets in user space, at both ends
	path           func(context.Context) (string, error)
	congestion     string // of the measured flow; empty is the pod's default
	link           *lab.Link
	pathAfter      time.Duration // from the first packet until it took its path
	best           float64       // datagrams per second without loss, of the rounds so far
}

// underlay is what lies between the nodes: a link in front of the client's node,
// or nothing but veth and a bridge.
type underlay struct {
	link *link.Config
	site *lab.Site // the LAN they stand on; nil is the WAN
}

// node puts a node on it.
func (u underlay) node(l *lab.Lab, name string, o lab.NodeOptions) (*lab.Node, error) {
	if u.site != nil {
		return u.site.AddNode(name, o)
	}
	return l.AddCloudNode(name, o)
}

// join puts it in front of the node, before anything runs there.
func (u underlay) join(ctx context.Context, l *lab.Lab, client *lab.Node) (*lab.Link, error) {
	if u.link == nil {
		return nil, nil
	}
	return l.InsertLink(ctx, client.NS, *u.link, 1)
}

// carrierKind joins two nodes that have no agent: it gives each a route to the
// other's pods.
type carrierKind struct {
	name string
	mtu  int // of the pods, bytes
	join func(ctx context.Context, l *lab.Lab, a, b *lab.Node) ([]*lab.Process, error)
}

// Carriers that need no program.
const (
	veth  = report.Plain
	vxlan = report.PlainVXLAN
)

func kinds(bin string) []carrierKind {
	return []carrierKind{
		{veth, 1500, joinByRoutes},
		{vxlan, 1450, joinByVXLAN},
		{report.Reference, 1420, wireGuard{filepath.Join(bin, "wireguard-go")}.join},
		{"nebula", nebulaMTU, nebula{bin}.join},
	}
}

func carrierNames() []string { return append(foreignCarriers(), report.Direct, report.Relayed) }

// foreignCarriers are those that are not ours.
func foreignCarriers() []string {
	var names []string
	for _, k := range kinds("") {
		names = append(names, k.name)
	}
	return names
}

// lanCarriers are those of nodes on one LAN: ours that need no tunnel there, and
// what they are to be compared with.
func lanCarriers() []string { return []string{veth, report.Native, vxlan, report.VXLAN} }

func setUp(ctx context.Context, l *lab.Lab, u underlay, bin, before, name string) (*carrier, error) {
	ctx, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	if want, ours := ourPaths()[name]; ours {
		return setUpEdgeMesh(ctx, l, u, before, name, want)
	}
	for i, k := range kinds(bin) {
		if k.name == name {
			return setUpKind(ctx, l, u, k, 200+i)
		}
	}
	return nil, fmt.Errorf("no carrier %q", name)
}

// setUpKind makes two nodes with the pod range 10.X.0.0/16.
func setUpKind(ctx context.Context, l *lab.Lab, u underlay, k carrierKind, x int) (*carrier, error) {
	var nodes [2]*lab.Node
	for i := range nodes {
		n, err := plainNode(l, u, fmt.Sprintf("%s-%c", k.name, 'a'+i), k.mtu, x, i+1)
		if err != nil {
			return nil, err
		}
		nodes[i] = n
	}
	c := &carrier{name: k.name}
	var err error
	if c.link, err = u.join(ctx, l, nodes[0]); err != nil {
		return nil, err
	}
	// Pods first: the plugin takes foreign routes inside the pod range for a clash.
	if err := c.addPods(ctx, nodes[0], nodes[1]); err != nil {
		return nil, err
	}
	c.tunnel, err = k.join(ctx, l, nodes[0], nodes[1])
	return c, err
}

// plainNode makes a node without an agent that does with its pods' packets what an
// agent has the kernel do: forward, track, and masquerade what leaves the range.
func plainNode(l *lab.Lab, u underlay, name string, mtu, x, number int) (*lab.Node, error) {
	block, all := fmt.Sprintf("10.%d.%d.0/24", x, number), fmt.Sprintf("10.%d.0.0/16", x)
	n, err := u.node(l, name, lab.NodeOptions{NoAgent: true, PodCIDRs: []string{block}})
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(map[string]any{"podCIDRs": n.PodCIDRs, "clusterCIDRs": []string{all}, "mtu": mtu})
	if err != nil {
		return nil, fmt.Errorf("subnet file: %w", err)
	}
	if err := lab.ReplaceFile(filepath.Join(n.Config.RuntimeDir, "subnet.json"), string(b)); err != nil {
		return nil, err
	}
	return n, n.Script(
		"sysctl -qw net.ipv4.ip_forward=1",
		fmt.Sprintf("iptables -w -t nat -A POSTROUTING -s %s ! -d %s -j MASQUERADE", block, all))
}

// bothDirections calls f for either direction.
func bothDirections(a, b *lab.Node, f func(from, to *lab.Node) error) error {
	return errors.Join(f(a, b), f(b, a))
}

func joinByRoutes(_ context.Context, _ *lab.Lab, a, b *lab.Node) ([]*lab.Process, error) {
	return nil, bothDirections(a, b, func(from, to *lab.Node) error {
		return from.Script(fmt.Sprintf("ip route add %s via %s", to.PodCIDRs[0], to.Addr))
	})
}

func joinByVXLAN(_ context.Context, _ *lab.Lab, a, b *lab.Node) ([]*lab.Process, error) {
	return nil, bothDirections(a, b, func(from, to *lab.Node) error {
		return from.Script(
			fmt.Sprintf("ip link add vx0 type vxlan id 7 local %s remote %s dstport 4789 dev %s", from.Addr, to.Addr, from.Uplink),
			"ip link set vx0 up",
			fmt.Sprintf("ip addr add %s/16 dev vx0", vxlanAddr(from)),
			fmt.Sprintf("ip route add %s via %s", to.PodCIDRs[0], vxlanAddr(to)))
	})
}

// vxlanAddr turns A.B.X.Y into 172.31.X.Y.
func vxlanAddr(n *lab.Node) string {
	a := n.Addr.As4()
	return fmt.Sprintf("172.31.%d.%d", a[2], a[3])
}

// addPods puts one pod on each node and starts the servers.
func (c *carrier) addPods(ctx context.Context, a, b *lab.Node) (err error) {
	if c.client, err = a.AddPod(ctx, "client"); err != nil {
		return err
	}
	if c.server, err = b.AddPod(ctx, "server"); err != nil {
		return err
	}
	if err := c.server.Serve(ctx); err != nil {
		return err
	}
	if _, err := c.server.Start("iperf3-"+c.name, "iperf3", "-s"); err != nil {
		return err
	}
	_, err = c.server.Start("iperf3-udp-"+c.name, "iperf3", "-s", "-p", strconv.Itoa(streamPort))
	return err
}

// ready waits until the server's pod answers.
func (c *carrier) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	return lab.Until(ctx, 100*time.Millisecond, func() error {
		return c.client.Ping(ctx, c.server.IP4().String(), time.Second)
	})
}
