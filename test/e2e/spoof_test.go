package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// forge sends datagrams with a forged source and fails when any arrives.
func forge(t *testing.T, from *lab.NS, source netip.Addr, to *lab.Pod, addr netip.Addr) {
	t.Helper()
	before := seen(t, to, source)
	// The kernel may refuse to send them already: EPERM is as good.
	if err := from.Tool(t.Context(), nil, "spoof", "--src", source.String(), addr.String()); err != nil {
		t.Logf("%s cannot even send: %v", from.Name, err)
	}
	// What came after them proves that they would have arrived by now.
	ok(t, to.Node.Ping(t.Context(), addr.String(), time.Second))
	time.Sleep(200 * time.Millisecond) // sleep: they would have arrived
	if n := seen(t, to, source) - before; n > 0 {
		t.Errorf("%s spoofed %s: %d datagrams reached %s", from.Name, source, n, to.Name)
	}
}

// honest holds that forge would see what arrives: a pod's own address does.
func honest(t *testing.T, from, to *lab.Pod) {
	t.Helper()
	for _, addrs := range pairs(from, to) {
		before := seen(t, to, addrs[0])
		ok(t, from.Tool(t.Context(), nil, "spoof", "--src", addrs[0].String(), addrs[1].String()))
		ok(t, lab.Until(within(t, 3*time.Second), 20*time.Millisecond, func() error {
			if n := seen(t, to, addrs[0]) - before; n < 3 {
				return fmt.Errorf("%d of 3 datagrams of %s's own address %s reached %s", n, from.Name, addrs[0],
					to.Name)
			}
			return nil
		}))
	}
}

// podCannotSpoof tries to take the victim's place from a pod: towards the
// witness, which stands anywhere.
func podCannotSpoof(t *testing.T, from, victim, witness *lab.Pod) {
	t.Helper()
	honest(t, from, witness)
	for i, addrs := range pairs(victim, witness) {
		forge(t, from.NS, addrs[0], witness, addrs[1])
		if own := pairs(from, witness); i < len(own) {
			// Also the address of nobody, of its own block.
			forge(t, from.NS, nobody(own[i][0]), witness, addrs[1])
		}
	}
}

// nobody returns an address of a's /24 or /64 that no pod has.
func nobody(a netip.Addr) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] = 250
	n, _ := netip.AddrFromSlice(b)
	return n
}

// cannotClaim gives the thief the victim's addresses and lets it talk as the
// victim, which announces them too (the ARP request's sender); the witness must
// still reach the victim.
func cannotClaim(t *testing.T, thief, victim, witness *lab.Pod) {
	t.Helper()
	for _, addr := range victim.Addrs {
		bits := map[bool]int{true: 32, false: 128}[addr.Is4()]
		opt := map[bool]string{true: "", false: " nodad"}[addr.Is4()]
		ok(t, thief.Script(fmt.Sprintf("ip addr add %s/%d dev eth0%s", addr, bits, opt)))
		if err := thief.Ping(t.Context(), gateway(addr).String(), time.Second, "-I", addr.String()); err == nil {
			t.Errorf("%s talked to the gateway as %s", thief.Name, addr)
		}
	}
	curlPods(t, witness, victim, 2*time.Second)
	for _, addr := range victim.Addrs {
		bits := map[bool]int{true: 32, false: 128}[addr.Is4()]
		ok(t, thief.Script(fmt.Sprintf("ip addr del %s/%d dev eth0", addr, bits)))
	}
}

// gateway is the first address of a's /24 or /64.
func gateway(a netip.Addr) netip.Addr {
	bits := map[bool]int{true: 24, false: 64}[a.Is4()]
	p, _ := a.Prefix(bits)
	return p.Masked().Addr().Next()
}

// TestPodCannotSpoofNeighbour holds the filter that the plugin puts on each pod,
// with no agent running.
func TestPodCannotSpoofNeighbour(t *testing.T) {
	beside(t)
	l := newLab(t)
	n := pluginNode(t, l, "plug-spoof", "10.244.7.0/24", "fd44:44:0:7::/64")
	a, b, c := pod(t, n, "a"), pod(t, n, "b"), pod(t, n, "c")
	podCannotSpoof(t, a, b, c)
	cannotClaim(t, a, b, c)
	t.Run("ByMAC", func(t *testing.T) {
		ok(t, a.Script(
			"ip link set eth0 down",
			"ip link set eth0 address 02:00:00:00:00:01",
			"ip link set eth0 up",
			"ip route replace default via "+gateway(a.IP4()).String()))
		noAnswer(t, a.NS, c.IP4(), "a pod with another MAC")
	})
}
