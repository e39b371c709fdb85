package p2p

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/dialer"
	"edgemesh/tunnel/p2p/paths"
	"edgemesh/tunnel/p2p/portguess"
)

// sitesThatGuess makes two sites and a node in each, and counts openers on the WAN side
// of both.
func sitesThatGuess(t *testing.T, natA, natB string, guessA, guessB bool) (w *world, a, b *process) {
	t.Helper()
	w = newWorld(t)
	w.site(1, natA, 1)
	w.site(2, natB, 1)
	for _, router := range []string{"n1", "n2"} { // IPv4, UDP, and the opener
		w.in(router, fmt.Sprintf("iptables -t mangle -A POSTROUTING -o wan0 -p udp -m length --length %d", 20+8+len(dialer.PunchPacket)))
	}
	c := w.configure(w.host(1, 1), w.host(2, 1))
	c.guess = []bool{guessA, guessB}
	c.startRelay()
	return w, c.startNode(0), c.startNode(1)
}

// openers returns how many the router has sent to the WAN.
func (w *world) openers(router string) int {
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
	for _, c := range []struct{ a, b string }{{natKeep, natBlock}, {natKeep, natSymmetric}, {natSymmetric, natKeep}} {
		t.Run(c.a+" "+c.b, func(t *testing.T) {
			t.Parallel()
			w, a, b := sitesThatGuess(t, c.a, c.b, true, true)
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
			na, nb := w.openers("n1"), w.openers("n2")
			t.Logf("punched after %v, %d and %d packets", time.Since(start), na, nb)
			if most := portguess.MaxProbes; na > most || nb > most || na == 0 || nb == 0 {
				t.Errorf("%d and %d packets, want some, at most %d", na, nb, most)
			}
		})
	}
}

// Ports are guessed only where both sides are told to: by default nothing is sent.
func TestPortsAreNotGuessed(t *testing.T) {
	for _, c := range []struct {
		name   string
		guess  [2]bool
		nat    string
		reason string
	}{
		{"off", [2]bool{false, false}, natBlock, "both NATs map per destination; last punch "},
		{"one side", [2]bool{true, false}, natBlock, "both NATs map per destination; last punch "},
		{"both are random", [2]bool{true, true}, natBlock, "ports are not guessed: both NATs choose them at random"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, a, b := sitesThatGuess(t, c.nat, c.nat, c.guess[0], c.guess[1])
			until := portguess.Plan{}.ProbeAfter()
			fair.Eventually(t, 60*time.Second, "reason", func() error {
				a.ask(request{Cmd: "call", Peer: b.id.String()})
				if r := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer.Reason; !strings.Contains(r, c.reason) {
					return fmt.Errorf("reason %q", r)
				}
				return nil
			})
			for start := time.Now(); time.Since(start) < 4*time.Second+until; time.Sleep(time.Second) {
				a.ask(request{Cmd: "call", Peer: b.id.String()})
			}
			if na, nb := w.openers("n1"), w.openers("n2"); na != 0 || nb != 0 {
				t.Errorf("%d and %d packets", na, nb)
			}
			if p := a.call(b).Path; p.Kind != paths.KindRelayed {
				t.Errorf("path %+v", p)
			}
		})
	}
}
