package host

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"edgemesh/internal/membership/mesh"
)

// TestNativeSenders: what a peer on the LAN may send is bound to its block, its MAC and the
// interface, and as long as it is only being probed, to probes.
func TestNativeSenders(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	var mac [6]byte
	l.in(l.lan, func() {
		link, err := netlink.LinkByName("lan0")
		if err != nil {
			t.Fatal(err)
		}
		mac = [6]byte(link.Attrs().HardwareAddr)
	})
	probe := int(dual().LAN.ProbePort)
	for name, v := range versions("nft") {
		l.in(l.lan, func() { run(t, "ip addr add "+v.far+" dev lan0 "+nodad(v)) })
		pod, gateway, peer := l.listen(l.podA, v.podA, probe), l.listen(l.node, v.gateway, probe), l.listen(l.lan, v.far, 5002)
		block, other, chain := "10.244.2.0/24", "10.244.3.0/24", "lan4"
		if strings.Contains(v.podA, ":") {
			block, other, chain = "fd00:2::/64", "fd00:3::/64", "lan6"
		}
		good := mesh.Sender{Block: netip.MustParsePrefix(block), Link: "up0", MAC: mac, Pods: true}
		probed, elsewhere, cloned, stolen := good, good, good, good
		probed.Pods = false
		elsewhere.Link = "lo" // any other that is up
		cloned.MAC[5] ^= 1
		stolen.Block = netip.MustParsePrefix(other)
		for _, c := range []struct {
			what         string
			s            mesh.Sender
			probes, pods bool
		}{
			{"in use", good, true, true}, {"being probed", probed, true, false}, {"another interface", elsewhere, true, false},
			{"another MAC", cloned, false, false}, {"another block", stolen, false, false},
		} {
			what := name + ", " + c.what
			mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{c.s}})
			for to, is := range map[string]bool{v.gateway: c.probes, v.podA: c.pods} {
				if !is {
					l.droppedByGuard(chain, func() { send(peer, what, to, probe) })
				}
			}
			if !c.pods && c.probes { // another port of the node's
				l.droppedByGuard(chain, func() { send(peer, what, v.gateway, probe+1) })
			}
			for at, is := range map[string]bool{v.gateway: c.probes, v.podA: c.pods} {
				if !is {
					continue
				}
				if err := send(peer, what, at, probe); err != nil {
					t.Fatal(err)
				}
				if at == v.gateway {
					l.receive(gateway, what)
				} else {
					l.receive(pod, what)
				}
			}
			l.nothing(pod, what)
			l.nothing(gateway, what)
		}
		what := name + ", withdrawn"
		mustSetPaths(t, l.host, mesh.Paths{Senders: []mesh.Sender{good}})
		if err := send(peer, what+" soon", v.podA, probe); err != nil {
			t.Fatal(err)
		}
		l.receive(pod, what+" soon")
		mustSetPaths(t, l.host, mesh.Paths{})
		l.droppedByGuard(chain, func() { send(peer, what, v.podA, probe) })
		l.nothing(pod, what)
	}
}
