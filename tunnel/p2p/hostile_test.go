package p2p

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/tier"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/tunneltest"
)

// A hostile member attacks a victim, whose packets go through a tunnel as an agent's do. Both are processes of their own,
// at a site behind a NAT and on the WAN.
const (
	victimBlock  = "10.244.1.0/24"
	hostileBlock = "10.244.2.0/24"
	otherBlock   = "10.244.3.0/24" // of a third member
)

// outgoing is how many packets left the victim's host for others than those that the rules before have let out.
func (w *world) outgoing(host string) int {
	w.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", w.ns(host), "iptables", "-nvxL", "OUTPUT").CombinedOutput()
	if err != nil {
		w.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	n, err := strconv.Atoi(strings.Fields(lines[len(lines)-1])[0])
	if err != nil {
		w.t.Fatalf("%v in %s", err, out)
	}
	return n
}

// quiet is what a victim has counted once nothing is on the way to it: its counters are read one after the other.
func quiet(t *testing.T, v *process) *counts {
	t.Helper()
	var seen []*counts
	fair.Eventually(t, 30*time.Second, "nothing is on the way", func() error {
		seen = append(seen, v.ask(request{}).Counts)
		if n := len(seen); n < 4 || seen[n-4].Arrived != seen[n-1].Arrived {
			return errors.New("packets arrive")
		}
		return nil
	})
	return seen[len(seen)-1]
}

// aThousandTargets are strangers on the internet, hosts of the victim's own LAN, of others, servers' ports, a cloud's
// metadata and the victim itself.
func aThousandTargets() []string {
	var out []string
	for i := range 1000 {
		transport := "tcp/%d"
		if i%2 == 0 {
			transport = "udp/%d/quic-v1"
		}
		ip, port := fmt.Sprintf("6.6.%d.%d", i/200, i%200+1), 2000+i
		switch i % 10 {
		case 0, 1:
			ip = fmt.Sprintf("192.168.1.%d", 20+i/10)
		case 2:
			ip = fmt.Sprintf("10.9.%d.%d", i/200, i%200+1)
		case 3:
			port = []int{22, 53, 80, 443}[i/10%4]
		case 4:
			ip = []string{"169.254.169.254", "127.0.0.1", "192.168.1.10", "100.100.100.200", "192.168.7.7"}[i/10%5]
		}
		out = append(out, fmt.Sprintf("/ip4/%s/"+transport, ip, port))
	}
	return out
}

// Whatever a member does: nothing foreign is delivered, little memory is held, hardly a packet leaves for strangers, and
// all of it is counted. The same tools get through where they may.
func TestHostileMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site(1, natKeep, 1)
	w.site(2, natNone, 1)
	w.in("n1", "ip route add 6.0.0.0/8 via "+w.relayIP(), "ip route add 10.0.0.0/8 via "+w.relayIP())
	good, bad := w.host(1, 1), w.host(2, 1)
	w.in(good, "iptables -A OUTPUT -o lo -j ACCEPT", "iptables -A OUTPUT -d 5.5.5.5 -j ACCEPT", "iptables -A OUTPUT -d 5.5.2.1 -j ACCEPT", "iptables -A OUTPUT")
	w.in(bad, "iptables -A INPUT -p tcp --dport 7777", "iptables -A INPUT -p udp --dport 7777",
		"iptables -A INPUT -s 5.5.1.1 -j DROP", "iptables -A OUTPUT -d 5.5.1.1 -j DROP")
	c := w.configure(good, bad)
	if idOf(t, c.keys[0]) < idOf(t, c.keys[1]) {
		slices.Reverse(c.keys) // the lesser ID offers sealed packets
	}
	ids := []string{idOf(t, c.keys[0]).String(), idOf(t, c.keys[1]).String(), idOf(t, newKey(t)).String()}
	blocks := map[string]string{ids[0]: victimBlock, ids[1]: hostileBlock, ids[2]: otherBlock}
	c.startRelay()
	c.roles = []func(*roleConfig){func(r *roleConfig) { r.Blocks = blocks }, func(r *roleConfig) { r.Victim = ids[0] }}
	v, h := c.startNode(0), c.startNode(1)
	ask := func(r request) reply {
		t.Helper()
		out := h.ask(r)
		if out.Err != "" {
			t.Logf("%s: %s", r.Cmd, out.Err)
		}
		return out
	}
	fair.Eventually(t, 20*time.Second, "a path", func() error {
		if out := h.ask(request{Cmd: "ping", Peer: ids[0], Time: 5 * time.Second}); out.Err != "" {
			return errors.New(out.Err)
		}
		return nil
	})
	offersAtStrangers(w, good, bad, v, h)

	// The way is free: the same member gets a direct path, and its own packets through.
	w.in(bad, "iptables -D INPUT -s 5.5.1.1 -j DROP", "iptables -D OUTPUT -d 5.5.1.1 -j DROP")
	ask(request{Cmd: "true offers"})
	fair.Eventually(t, 90*time.Second, "a direct path over QUIC", func() error {
		for _, p := range []*process{v, h} { // both are in demand
			_ = p.ask(request{Cmd: "ping", Peer: ids[map[*process]int{v: 1, h: 0}[p]], Time: 2 * time.Second})
		}
		st := h.ask(request{Cmd: "status", Peer: ids[0]}).Peer
		for _, p := range st.All {
			if p.Transport == "quic" && p.Kind != paths.KindRelayed {
				return nil
			}
		}
		return fmt.Errorf("%+v: %s", st.All, st.Reason)
	})
	port := func(ip string) netip.AddrPort { return netip.MustParseAddrPort(ip + ":1000") }
	datagram := func(kind byte, from, to string) []byte {
		return append([]byte{kind}, tunneltest.UDPPacket(port(from), port(to), []byte("hello"))...)
	}
	own := datagram(0, "10.244.2.7", "10.244.1.7")
	fair.Eventually(t, 30*time.Second, "its own packets are delivered", func() error {
		ask(request{Cmd: "datagrams", Packet: own, Count: 100})
		if v.ask(request{}).Counts.Delivered == 0 {
			return errors.New("none")
		}
		return nil
	})
	quiet(t, v) // those of a second try may still be on the way
	rest := v.ask(request{Cmd: "rest"}).Counts

	count := 40_000
	if tier.IsLong() {
		count = 200_000
	}
	for _, x := range []struct{ what, from, to, reason string }{
		{"another member's source", "10.244.3.7", "10.244.1.7", "source_not_peer"},
		{"the victim's own source", "10.244.1.9", "10.244.1.7", "source_not_peer"},
		{"a stranger's source", "8.8.8.8", "10.244.1.7", "source_not_peer"},
		{"for another member", "10.244.2.7", "10.244.3.7", "dest_not_own"},
		{"for the host", "10.244.2.7", "127.0.0.1", "dest_not_own"},
	} {
		const batch = 64
		half := uint64(count) / 2
		before := quiet(t, v)
		if n := ask(request{Cmd: "datagrams", Packet: datagram(0, x.from, x.to), Count: count, Time: time.Minute}).Count; n < count {
			t.Errorf("%s: %d were sent", x.what, n)
		}
		// UDP loses some on the way. What arrives is refused, all of it.
		fair.Eventually(t, 10*time.Second, x.what+": refused", func() error {
			now := v.ask(request{}).Counts
			arrived, refused := now.Arrived-before.Arrived, now.Drops[x.reason]-before.Drops[x.reason]
			all := now.Drops["source_not_peer"] + now.Drops["dest_not_own"] - before.Drops["source_not_peer"] - before.Drops["dest_not_own"]
			if refused < half { // a busy machine loses more
				ask(request{Cmd: "datagrams", Packet: datagram(0, x.from, x.to), Count: count / 4, Time: time.Minute})
			}
			// The last ones of the round before count, too, and each look finds some between the two counters.
			if refused < half || all+batch < arrived {
				return fmt.Errorf("%d of %d arrived, %d were refused, %d of them as %s", arrived, count, all, refused, x.reason)
			}
			t.Logf("%s: %d of %d arrived, %d were refused", x.what, arrived, count, refused)
			return nil
		})
	}
	ask(request{Cmd: "datagrams", Packet: append([]byte{2, 0, 0}, make([]byte, 1300)...), Count: count / 2})
	sessions := ask(request{Cmd: "sessions", Count: 1000, Time: 3 * time.Minute}).Count
	for _, b := range [][]byte{{1, 0, 0, 4, 9, 9, 9, 9}, bytes.Repeat([]byte{0xff}, 5000), {}} {
		ask(request{Cmd: "frames", Packet: b})
	}
	ask(request{Cmd: "datagrams", Packet: []byte{0x7f, 1, 2, 3}, Count: 1000})

	end := v.ask(request{}).Counts
	t.Logf("delivered %d and %d, RSS %d KiB, peak %d; %d of 1000 sessions; drops %v; refused %v", rest.Delivered, end.Delivered,
		rest.RSS, end.Peak, sessions, end.Drops, end.Refused)
	if end.Delivered != rest.Delivered {
		t.Errorf("%d packets were delivered", end.Delivered-rest.Delivered)
	}
	if grown := end.Peak - rest.RSS; grown > 20<<10 {
		t.Errorf("the victim has grown by %d KiB", grown)
	}
	for _, r := range []string{"source_not_peer", "dest_not_own", "half", "bad_frame"} {
		if end.Drops[r] == 0 {
			t.Errorf("nothing is counted as %s", r)
		}
	}
	for _, r := range []string{"packet_offers", "packet_replaced", "packet_forged", "packet_unknown_session"} {
		if end.Refused[r] == 0 {
			t.Errorf("nothing is counted as %s", r)
		}
	}
	if st := v.ask(request{Cmd: "status", Peer: ids[1]}); st.Counts == nil {
		t.Error("the victim does not answer")
	}
}

// offersAtStrangers has the member make offers as fast as it can. What may leave in a minute leaves in the first seconds; that
// no minute of hours has more, package targets tests with a clock of its own.
func offersAtStrangers(w *world, good, bad string, v, h *process) {
	t := w.t
	t.Helper()
	least, most := 6*time.Second, 70*time.Second
	if tier.IsLong() {
		least = most
	}
	// One of its own addresses is among them, at which the relay sees it.
	targets := append(aThousandTargets(), "/ip4/5.5.2.1/tcp/7777", "/ip4/5.5.2.1/udp/7777/quic-v1")
	for i := range targets[:1000] {
		if i%20 == 0 {
			targets[i] = targets[1000+i/20%2]
		}
	}
	var missing []string // of what must be seen
	var refused map[string]uint64
	seen := func() bool {
		refused, missing = v.ask(request{}).Counts.Refused, nil
		for _, r := range []string{"target_port", "target_private", "target_budget", "punch_offers"} {
			if refused[r] == 0 {
				missing = append(missing, "refusals counted as "+r)
			}
		}
		for _, proto := range []string{"tcp", "udp"} {
			if w.counted(bad, proto) == 0 {
				missing = append(missing, proto+" where a relay sees the member")
			}
		}
		return missing == nil
	}
	var at []time.Duration
	var sent []int
	start := time.Now()
	count := func() { at, sent = append(at, time.Since(start)), append(sent, w.outgoing(good)) }
	count()
	// Which targets are tried is chance: it continues until some of each kind were.
	for took := time.Duration(0); took < least || took < most && !seen(); took = time.Since(start) {
		h.ask(request{Cmd: "offers", Targets: targets, Time: time.Second})
		count()
	}
	time.Sleep(3 * time.Second) // sleep: longer than the last dials last
	count()
	inAMinute := 0
	for i := range at {
		for k := i; k < len(at) && at[k]-at[i] <= time.Minute; k++ {
			inAMinute = max(inAMinute, sent[k]-sent[i])
		}
	}
	all := sent[len(sent)-1] - sent[0]
	tcp, udp := w.counted(bad, "tcp"), w.counted(bad, "udp")
	t.Logf("%d packets in %v, at most %d in a minute; %d and %d to its own address; refused %v", all, at[len(at)-1].Round(time.Second), inAMinute, tcp, udp, refused)
	if inAMinute > 24 {
		t.Errorf("%d packets left for strangers in a minute, want at most 24", inAMinute)
	}
	if all == 0 {
		t.Error("no packet at all left: the count, or the tool, does not work")
	}
	if !seen() {
		t.Errorf("there are no %s", strings.Join(missing, ", "))
	}
}
