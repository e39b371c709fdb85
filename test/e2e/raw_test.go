package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestRawPacketsFromAPod: a pod with raw sockets writes frames of its own, to a pod beside it, one on another node, and its
// node. None arrives that goes to the host's loopback, has a foreign source, or hides an extension header; each has its
// control, by the same tool on the same way.
func TestRawPacketsFromAPod(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newLANPair(t, nil)
	near := pod(t, p.n1, "near")
	server, err := p.n1.NS.Serve(t.Context(), "node")
	ok(t, err)
	t.Cleanup(func() { ok(t, server.Stop()) })
	_, err = p.n1.Run(t.Context(), "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1") // as portmap and kube-proxy set it
	ok(t, err)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "native")
	raw := rawPod{p.pod1, macOf(t, p.n1, "edgemesh-br")}

	gateway4 := gateway(p.pod1.IP4())
	raw.refused(t, "to loopback", p.n1.NS, func(count int) { raw.send(t, p.pod1.IP4(), netip.MustParseAddr("127.0.0.1"), count, "") },
		func(count int) { raw.send(t, p.pod1.IP4(), gateway4, count, "") })
	for _, to := range []struct {
		ns    *lab.NS
		addrs []netip.Addr
	}{{near.NS, near.Addrs}, {p.pod2.NS, p.pod2.Addrs}, {p.n1.NS, []netip.Addr{gateway4, gateway(p.pod1.IP6())}}} {
		for _, addr := range to.addrs {
			own, foreign := p.pod1.IP4(), []netip.Addr{near.IP4(), p.pod2.IP4(), gateway4, nobody(near.IP4()), netip.MustParseAddr("5.5.9.9")}
			if addr.Is6() {
				own, foreign = p.pod1.IP6(), []netip.Addr{near.IP6(), p.pod2.IP6(), gateway(near.IP6()), nobody(near.IP6()), netip.MustParseAddr("2001:db8::9")}
			}
			control := func(count int) { raw.send(t, own, addr, count, "") }
			for _, source := range foreign {
				raw.refused(t, fmt.Sprintf("to %s as %s", addr, source), to.ns, func(count int) { raw.send(t, source, addr, count, "") }, control)
			}
			if addr.Is4() {
				continue
			}
			for _, hidden := range []string{"44,60", "44,0", "44,43", "44,44", "60,44,60", "43", "60,43"} {
				raw.refused(t, fmt.Sprintf("to %s with extension headers %s", addr, hidden), to.ns,
					func(count int) { raw.send(t, own, addr, count, hidden) }, func(count int) { raw.send(t, own, addr, count, "60,44") })
			}
		}
	}
}

// rawPod is a pod that writes frames.
type rawPod struct {
	*lab.Pod
	to string // their destination: the bridge's MAC, which routes
}

func (r rawPod) send(t *testing.T, src, dst netip.Addr, count int, extensions string) {
	t.Helper()
	mac, err := r.Run(t.Context(), "cat", "/sys/class/net/eth0/address")
	ok(t, err)
	ok(t, r.Tool(t.Context(), nil, "spoof", "--dev", "eth0", "--from-mac", mac[:17], "--to-mac", r.to, "--src", src.String(),
		"--count", fmt.Sprint(count), "--extensions", extensions, dst.String()))
}

// refused holds that of what forged and then control send, control's alone arrives: what is forged would come first.
func (r rawPod) refused(t *testing.T, what string, at *lab.NS, forged, control func(count int)) {
	t.Helper()
	all := func() (n int) {
		counts := map[string]int{}
		ok(t, at.Tool(t.Context(), &counts, "get", fmt.Sprintf("http://127.0.0.1:%d/seen", lab.ServePort)))
		for _, c := range counts {
			n += c
		}
		return n
	}
	before := all()
	const forgeries, controls = 3, 4
	forged(forgeries)
	control(controls)
	n := 0
	err := lab.Until(within(t, 3*time.Second), 20*time.Millisecond, func() error {
		if n = all() - before; n < controls {
			return fmt.Errorf("%d of %d datagrams that may arrive did", n, controls)
		}
		return nil
	})
	time.Sleep(50 * time.Millisecond) // sleep: some of control's may be on their way
	if n = all() - before; err != nil || n != controls {
		t.Errorf("%s: %d datagrams arrived, want the %d that may: %v", what, n, controls, err)
	}
}
