package e2e

import (
	"testing"
	"time"

	"edgemesh/test/tier"
)

// TestForwardingOffOnAnUplink: hardening, or systemd-networkd, switches forwarding off on the interface of a LAN whose nodes talk natively, before
// the agent's start or later: pods reach each other, and other networks, within seconds.
func TestForwardingOffOnAnUplink(t *testing.T) {
	tier.Long(t)
	beside(t)
	var off string
	p := newLANPair(t, func(p *lanPair) {
		off = "sysctl -qw net.ipv4.conf." + p.n2.Uplink + ".forwarding=0"
		ok(t, p.n2.Script("sysctl -qw net.ipv4.ip_forward=1", off))
	})
	n1, n2, one, two := p.n1, p.n2, p.pod1, p.pod2
	curlPods(t, one, two, 10*time.Second)
	_, err := n1.WaitPath(within(t, 30*time.Second), n2, "native")
	ok(t, err)
	for range 3 {
		curlPods(t, one, two, 5*time.Second)
		ok(t, n2.Script(off))
		curlPods(t, one, two, 5*time.Second)
		curlPods(t, two, one, 5*time.Second)
	}
}
