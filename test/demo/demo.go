package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"edgemesh/test/lab"
)

// demo is the story, in the order of run.
type demo struct {
	lab   *lab.Lab
	show  *show
	relay *lab.Relay
	siteA *lab.Site
	siteB *lab.Site
	edge1 *lab.Node
	edge2 *lab.Node
	cloud *lab.Node
	pods  []*lab.Pod

	unblock func() error
	results []measured
}

// measured is one line of the table at the end.
type measured struct {
	path, transport string
	rttMs, mbps     float64
}

func (d *demo) run(ctx context.Context) error {
	for _, part := range []func(context.Context) error{
		d.topology, d.noWay, d.start, d.makePods, d.curlAll, d.relayed, d.punched, d.summary, d.calm,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) topology(context.Context) error {
	d.show.title("A small internet in network namespaces")
	err := d.show.step("relay, two sites behind NATs, a cloud node", func() (_ string, err error) {
		if d.relay, err = d.lab.AddRelay("relay"); err != nil {
			return "", err
		}
		if d.siteA, err = d.lab.AddSite("site-a", lab.EIM); err != nil {
			return "", err
		}
		if d.siteB, err = d.lab.AddSite("site-b", lab.EIM); err != nil {
			return "", err
		}
		if d.edge1, err = d.siteA.AddNode("edge-1", lab.NodeOptions{}); err != nil {
			return "", err
		}
		if d.edge2, err = d.siteB.AddNode("edge-2", lab.NodeOptions{}); err != nil {
			return "", err
		}
		if d.cloud, err = d.lab.AddCloudNode("cloud-1", lab.NodeOptions{}); err != nil {
			return "", err
		}
		// So that the relayed path can be looked at in peace: until the end of
		// that chapter the routers do not let the two sites talk directly.
		d.unblock, err = d.siteA.Block(d.siteB)
		return "", err
	})
	if err != nil {
		return err
	}
	d.show.text("\n%s\n", d.lab.Draw())
	return nil
}

// noWay tries what plain networking offers between the nodes.
func (d *demo) noWay(ctx context.Context) error {
	d.show.title("Without EdgeMesh there is no path")
	if d.edge1.Addr != d.edge2.Addr {
		return fmt.Errorf("edge-1 is %s and edge-2 %s: the story needs one address twice", d.edge1.Addr, d.edge2.Addr)
	}
	d.show.text("edge-1 and edge-2 both are %s, each on its own LAN: they cannot even name each other.", d.edge1.Addr)
	tries := []struct {
		what string
		from *lab.NS
		to   string
	}{
		{"cloud-1 → edge-1 at 192.168.1.11", d.cloud.NS, d.edge1.Addr.String()},
		{"cloud-1 → edge-2 at its router 5.5.2.1", d.cloud.NS, d.siteB.WAN.String()},
		{"edge-1 → a pod address of edge-2", d.edge1.NS, "10.244.2.2"},
		{"cloud-1 → a pod address of edge-1", d.cloud.NS, "10.244.1.2"},
	}
	errs := make([]error, len(tries))
	return d.show.step("all of these tried, one second each", func() (string, error) {
		var wg sync.WaitGroup
		for i, t := range tries {
			wg.Go(func() {
				if t.from.Ping(ctx, t.to, time.Second) == nil {
					errs[i] = fmt.Errorf("%s: answered", t.what)
				}
			})
		}
		wg.Wait()
		for _, t := range tries {
			d.show.text("  %s", t.what)
		}
		return "no answer", errors.Join(errs...)
	})
}

func (d *demo) start(ctx context.Context) error {
	d.show.title("Relay and agents")
	if err := d.lab.WriteMembership(); err != nil {
		return err
	}
	err := d.show.step("edgemesh-relay on "+d.relay.Addr, func() (string, error) { return "", d.relay.Start() })
	if err != nil {
		return err
	}
	return d.show.step("edgemesh-agent on edge-1, edge-2, cloud-1; reserved at the relay", func() (string, error) {
		for _, n := range d.lab.Nodes() {
			if err := n.Start(); err != nil {
				return "", err
			}
		}
		for _, n := range d.lab.Nodes() {
			if err := n.WaitPods(ctx); err != nil {
				return "", err
			}
			if err := n.WaitReserved(ctx); err != nil {
				return "", err
			}
		}
		return "", nil
	})
}

func (d *demo) makePods(ctx context.Context) error {
	d.show.title("Pods, made by calling edgemesh-cni as kubelet's runtime does")
	for _, p := range []struct {
		node *lab.Node
		name string
	}{{d.edge1, "shop"}, {d.edge1, "till"}, {d.edge2, "camera"}, {d.cloud, "web"}} {
		err := d.show.step(fmt.Sprintf("%-7s on %s", p.name, p.node.Name), func() (string, error) {
			pod, err := p.node.AddPod(ctx, p.name)
			if err != nil {
				return "", err
			}
			d.pods = append(d.pods, pod)
			return fmt.Sprintf("%s, %s", pod.IP4(), pod.IP6()), nil
		})
		if err != nil {
			return err
		}
	}
	return d.show.step("a web server in each", func() (string, error) {
		for _, p := range d.pods {
			if err := p.Serve(ctx); err != nil {
				return "", err
			}
		}
		return "", nil
	})
}

// curl fetches http://addr:9376/ with the real curl and checks whom the server
// took the client for.
func curl(ctx context.Context, from *lab.NS, to *lab.Pod, addr netip.Addr, source netip.Addr) (string, error) {
	url := "http://" + netip.AddrPortFrom(addr, lab.ServePort).String() + "/"
	out, err := from.Run(ctx, "curl", "-gsS", "-m", "5", url)
	if err != nil {
		return "", err
	}
	want := fmt.Sprintf("{\"client\":\"%s\",\"name\":\"%s\"}\n", source, to.Name)
	if source.IsValid() && out != want {
		return "", fmt.Errorf("curl %s answered %q, want %q", url, out, want)
	}
	return url, nil
}

func (d *demo) curlAll(ctx context.Context) error {
	d.show.title("curl http://POD-IP:%d, every pod to every other; the server must see the client's own IP",
		lab.ServePort)
	for _, from := range d.pods {
		for _, to := range d.pods {
			if from == to {
				continue
			}
			err := d.show.step(fmt.Sprintf("%-7s→ %-7s", from.Name, to.Name), func() (string, error) {
				u4, err := curl(ctx, from.NS, to, to.IP4(), from.IP4())
				if err != nil {
					return "", err
				}
				_, err = curl(ctx, from.NS, to, to.IP6(), from.IP6())
				return u4 + " and by IPv6", err
			})
			if err != nil {
				return err
			}
		}
	}
	for _, n := range d.lab.Nodes() {
		for _, to := range d.pods {
			if to.Node == n {
				continue
			}
			err := d.show.step(fmt.Sprintf("node %s → %-7s", n.Name, to.Name), func() (string, error) {
				return curl(ctx, n.NS, to, to.IP4(), netip.Addr{})
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// camera is the pod behind the other NAT, as seen from pods[0].
func (d *demo) camera() *lab.Pod { return d.pods[2] }

func (d *demo) relayed(ctx context.Context) error {
	d.show.title("Through the relay: the routers still keep the two sites apart")
	return d.measure(ctx, "relayed")
}

func (d *demo) punched(ctx context.Context) error {
	d.show.title("Through both NATs: now the routers let the sites' own packets pass")
	if err := d.unblock(); err != nil {
		return err
	}
	return d.measure(ctx, "punched")
}

// tcpPatience is how long the demo waits for TCP beside QUIC.
const tcpPatience = 10 * time.Second

// waitTCP waits until the path runs over TCP, which is faster for streams, and
// returns whether it does. QUIC often gets through the NATs first; without TCP the
// story continues with it, and says so.
func (d *demo) waitTCP(ctx context.Context) (bool, error) {
	wait, cancel := context.WithTimeout(ctx, tcpPatience)
	defer cancel()
	_, err := d.edge1.WaitTransport(wait, d.edge2, "tcp")
	if ctx.Err() != nil {
		return false, err
	}
	return err == nil, nil
}

// measure waits for the path between the two sites to be of the kind and takes
// its round-trip time and throughput, from pod to pod.
func (d *demo) measure(ctx context.Context, kind string) error {
	var m measured
	from, to := d.pods[0], d.camera()
	err := d.show.step(fmt.Sprintf("edge-1's path to edge-2 is %q", kind), func() (string, error) {
		p, err := d.edge1.WaitPath(ctx, d.edge2, kind)
		if err != nil {
			return "", err
		}
		if _, err := d.edge2.WaitPath(ctx, d.edge1, kind); err != nil {
			return "", err
		}
		m.path, m.transport = p.Path, p.Transport
		return "over " + p.Transport, nil
	})
	if err != nil {
		return err
	}
	if m.transport == "quic" {
		err := d.show.try("and TCP, which carries streams faster, beside it", func() (bool, error) {
			tcp, err := d.waitTCP(ctx)
			if tcp {
				m.transport = "tcp"
			}
			return tcp, err
		})
		if err != nil {
			return err
		}
	}
	err = d.show.step("round-trip time, pod to pod", func() (string, error) {
		var g lab.Gaps
		err := from.Tool(ctx, &g, "gaps", "--interval", "20ms", "--duration", "600ms", to.IP4().String())
		m.rttMs = g.P50Ms
		return fmt.Sprintf("%.2f ms (median of %d)", g.P50Ms, g.Received), err
	})
	if err != nil {
		return err
	}
	err = d.show.step("throughput, one TCP flow, pod to pod", func() (string, error) {
		var b lab.Bulk
		err := from.Tool(ctx, &b, "bulk", "--duration", "2s", to.IP4().String())
		m.mbps = b.Mbps
		return fmt.Sprintf("%.0f Mbit/s", b.Mbps), err
	})
	d.results = append(d.results, m)
	return err
}

func (d *demo) summary(ctx context.Context) error {
	d.show.title("What edge-1 says (edgemesh-agent status)")
	out, _, err := d.edge1.AgentCommand(ctx, "status", "--runtime-dir", d.edge1.Config.RuntimeDir)
	if err != nil {
		return err
	}
	d.show.text("%s", out)
	d.show.title("shop (site A) ↔ camera (site B), all on this one machine")
	d.show.text("%-10s %-12s %12s %14s", "path", "transport", "round trip", "one TCP flow")
	for _, m := range d.results {
		d.show.text("%-10s %-12s %9.2f ms %7.0f Mbit/s", m.path, m.transport, m.rttMs, m.mbps)
	}
	return nil
}

// calm wants nothing in the logs that an operator would have to act on.
func (d *demo) calm(context.Context) error {
	d.show.title("The logs of relay and agents")
	return d.show.step("no warning in any of them", func() (string, error) {
		warnings, err := d.lab.Warnings()
		if err == nil && len(warnings) > 0 {
			err = errors.New(strings.Join(warnings, "\n"))
		}
		return "", err
	})
}

// howToPlay prints what to do with a demo that was kept.
func (d *demo) howToPlay() {
	from, to := d.pods[0], d.camera()
	d.show.title("Left running (KEEP=1). Try, as root:")
	d.show.text("ip netns exec %s curl http://%s:%d/", from.Full, to.IP4(), lab.ServePort)
	d.show.text("ip netns exec %s ping %s", from.Full, to.IP6())
	for _, c := range []string{"status", "doctor", "ping edge-2"} {
		d.show.text("ip netns exec %s %s %s --runtime-dir %s", d.edge1.Full, d.edge1.AgentPath(), c,
			d.edge1.Config.RuntimeDir)
	}
	d.show.text("tail -f %s/log/edge-1.log", d.lab.Dir)
	d.show.text("\nTo remove it:\nbin/podtool lab reap %s", d.lab.Tag)
}
