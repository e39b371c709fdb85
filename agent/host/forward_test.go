package host

import (
	"fmt"
	"net/netip"
	"testing"

	"edgemesh/internal/membership/mesh"
)

// forwarding is w with one machine of the LAN that may send to one port of nodes and pods.
func forwarding(w mesh.Host) mesh.Host {
	w.Forward = mesh.Forward{Ports: []mesh.HostPort{{Port: openPort, Proto: "udp"}}}
	for _, a := range []string{lanHost4, lanHost6} {
		addr := netip.MustParseAddr(a)
		w.Forward.From = append(w.Forward.From, netip.PrefixFrom(addr, addr.BitLen()))
	}
	w.Forward.From = append(w.Forward.From, netip.MustParsePrefix("10.244.2.0/24")) // the cluster's own: left out
	return w
}

// TestForward: who is named reaches the port of far nodes and own pods through a hardened host, a far one under this node's
// mesh address. Nobody else does, and no other port is reached.
func TestForward(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backend string
		w       mesh.Host
		keep    bool
	}{
		{"nft", forwarding(dual()), false},
		{"legacy", forwarding(limited(dual(), mesh.HostNodes, false)), false},
		{"nft", forwarding(kept()), true},
	} {
		for name, v := range versions(c.backend) {
			t.Run(fmt.Sprint(c.backend, "/", name, "/keep ", c.keep), func(t *testing.T) {
				t.Parallel()
				var l *lab
				if c.keep {
					l = newKeepLab(t, fmt.Sprintf(hardened, c.backend))
					mustSet(t, l.host, c.w)
				} else {
					l = newLabOf(t, fmt.Sprintf(hardened, c.backend), c.w)
				}
				wantUnchanged(t, l.host, c.w)
				l.forwards(v, c.keep)
			})
		}
	}
}

func (l *lab) forwards(v version, keep bool) {
	t := l.t
	farNode := farNode4
	if anyOf(v) == "::" {
		farNode = farNode6
	}
	lan := netip.MustParseAddr(v.lanHost)
	stranger := lan.Next().String()
	l.in(l.lan, func() { run(t, "ip addr add "+stranger+" dev lan0 "+map[bool]string{true: "nodad"}[lan.Is6()]) })
	api, other := l.listen(l.lan, v.lanHost, 0), l.listen(l.lan, stranger, 0)
	for _, to := range []string{farNode, v.far} {
		if err := send(api, "to "+to, to, openPort); err != nil {
			t.Fatal(err)
		}
		src, dst := l.fromTUN("to " + to)
		if want := netip.MustParseAddr(v.gateway); src.Addr() != want {
			t.Errorf("to %s: the source is %s, want the mesh address %s", to, src.Addr(), want)
		}
		l.toTUN(dst.String(), src.String(), "answer of "+to)
		l.receive(api, "answer of "+to)
	}
	if !keep { // else that plugin says who reaches its pods
		pod := l.listen(l.podA, v.podA, openPort)
		if err := send(api, "to own pod", v.podA, openPort); err != nil {
			t.Fatal(err)
		}
		from := l.receive(pod, "to own pod")
		if from.Addr() != lan {
			t.Errorf("to an own pod: the source is %s, want %s", from.Addr(), lan)
		}
		if err := send(pod, "own pod's answer", v.lanHost, int(from.Port())); err != nil {
			t.Fatal(err)
		}
		l.receive(api, "own pod's answer")
	}
	for what, try := range map[string]func() error{
		"another port":    func() error { return send(api, "another port", farNode, closedPort) },
		"another machine": func() error { return send(other, "another machine", farNode, openPort) },
	} {
		l.dropped(v.iptables+"-save", "EDGEMESH-FORWARD", func() {
			if err := try(); err != nil {
				t.Fatal(what, err)
			}
		})
	}
}
