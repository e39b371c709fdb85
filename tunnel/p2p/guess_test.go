package p2p

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/nat/portguess"
	"edgemesh/tunnel/p2p/path/paths"
)

// sitesThatGuess makes two sites and a node in each, and counts punch packets on the WAN side
// of both.
func sitesThatGuess(t *testing.T, natA, natB string, guessA, guessB bool, sees *string, node func(*roleConfig)) (w *world, a, b *process) {
	t.Helper()
	w = newWorld(t)
	w.site(1, natA, 1)
	w.site(2, natB, 1)
	for _, router := range []string{"n1", "n2"} { // IPv4, UDP, and the punch packet
		w.in(router, fmt.Sprintf("iptables -t mangle -A POSTROUTING -o wan0 -p udp -m length --length %d", 20+8+len(dialer.PunchPacket)))
	}
	c := w.configure(w.host(1, 1), w.host(2, 1))
	c.guess, c.sees, c.roles = []bool{guessA, guessB}, sees, []func(*roleConfig){node, node}
	c.startRelay()
	return w, c.startNode(0), c.startNode(1)
}

// punchPackets returns how many the router has sent to the WAN.
func (w *world) punchPackets(router string) int {
	w.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", w.ns(router), "iptables", "-t", "mangle", "-nvxL", "POSTROUTING").Output()
	if err != nil {
		w.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	n, err := strconv.Atoi(strings.Fields(lines[len(lines)-1])[0])
	if err != nil {
		w.t.Fatalf("%v in %q", err, out)
	}
	return n
}

func TestGuessedPorts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		many int // members beside the two: relays see UDP only when punching asks
	}{{natKeep, natBlock, 0}, {natKeep, natSymmetric, 0}, {natSymmetric, natKeep, 100}} {
		t.Run(c.a+" "+c.b, func(t *testing.T) {
			t.Parallel()
			w, a, b := sitesThatGuess(t, c.a, c.b, true, true, nil, func(r *roleConfig) { r.Many = c.many })
			start := time.Now()
			a.call(b)
			for _, p := range []*process{a, b} {
				to := map[*process]*process{a: b, b: a}[p]
				fair.Eventually(t, 90*time.Second, "a port is met", func() error {
					p.ask(request{Cmd: "call", Peer: to.id.String()}) // traffic keeps the peer in demand
					ps := p.ask(request{Cmd: "status", Peer: to.id.String()}).Peer
					if ps.Path.Kind != paths.KindPunched || ps.Path.Transport != "quic" {
						return fmt.Errorf("%+v: %s", ps.All, ps.Reason)
					}
					return nil
				})
			}
			na, nb := w.punchPackets("n1"), w.punchPackets("n2")
			t.Logf("punched after %v, %d and %d packets", time.Since(start), na, nb)
			if most := portguess.MaxProbes; na > most || nb > most || na == 0 || nb == 0 {
				t.Errorf("%d and %d packets, want some, at most %d", na, nb, most)
			}
		})
	}
}

// Ports are guessed only where both sides may, one of them is not random, and relays see the peer there.
func TestPortsAreNotGuessed(t *testing.T) {
	t.Parallel()
	stranger := "/ip4/5.5.9.9/udp/4001/quic-v1"
	for _, c := range []struct {
		name   string
		guess  [2]bool
		nat    string
		sees   *string
		reason string
	}{
		{"off", [2]bool{false, false}, natKeep, nil, "ports are not guessed: punch.guess is never here"},
		{"off there", [2]bool{true, false}, natKeep, nil, "ports are not guessed: the peer has punch.guess: never"},
		{"both are random", [2]bool{true, true}, natBlock, nil, "ports are not guessed: both NATs choose them at random"},
		{"a relay of a former version", [2]bool{true, true}, natKeep, new(string), "none of `relays` says that it sees the peer there"},
		{"a relay that lies", [2]bool{true, true}, natKeep, &stranger, "none of `relays` says that it sees the peer there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, a, b := sitesThatGuess(t, c.nat, natBlock, c.guess[0], c.guess[1], c.sees, func(*roleConfig) {})
			until := portguess.Plan{}.ProbeAfter()
			fair.Eventually(t, 60*time.Second, "reason", func() error {
				a.ask(request{Cmd: "call", Peer: b.id.String()})
				if r := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer.Reason; !strings.Contains(r, c.reason) {
					return fmt.Errorf("reason %q", r)
				}
				return nil
			})
			for start := time.Now(); time.Since(start) < 4*time.Second+until; time.Sleep(time.Second) { // sleep: nothing is sent meanwhile
				a.ask(request{Cmd: "call", Peer: b.id.String()})
			}
			if na, nb := w.punchPackets("n1"), w.punchPackets("n2"); na != 0 || nb != 0 {
				t.Errorf("%d and %d packets", na, nb)
			}
			if p := a.call(b).Path; p.Kind != paths.KindRelayed {
				t.Errorf("path %+v", p)
			}
		})
	}
}
