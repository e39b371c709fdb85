package view

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/lan/decide"
	"edgemesh/tunnel/p2p/nat/portguess"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// fleet is the status of a node with n peers, by the share of each path: a few are in use.
func fleet(n int) control.Status {
	rtt, wait, mbps, since := 12.3, 104.5, 93.7, now.Add(-11*24*time.Hour)
	s := control.Status{Node: "edge-0", PeerID: "12D3KooWself", Version: "v1.2.3", StartedAt: now.Add(-10 * 24 * time.Hour),
		NAT: control.NAT{Kind: "stable", Detail: "stable: one port for all destinations"}, Addresses: []string{"10.244.0.1"},
		Relays: []control.RelayStatus{{PeerID: "12D3KooWrelayrelay", Addr: "/ip4/5.5.5.5/tcp/4001", Connected: true, Reserved: true, RTTMs: &rtt}},
		Pools:  []control.Pool{{Blocks: []string{"10.244.0.0/24"}, Size: 253, Used: 3}}}
	paths := []string{"native", "direct", "punched", "relayed", "relayed", "none", Idle, Idle, Idle, Idle}
	for i := range n {
		p := control.PeerStatus{Node: fmt.Sprintf("edge-%d", i+1), PeerID: fmt.Sprintf("12D3KooWpeer%d", i+1), Path: paths[i%len(paths)],
			PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", 100+i/256, i%256)}, Site: []string{"berlin", "oslo"}[i%2]}
		if p.Path != Idle {
			p.Transport, p.RTTMs, p.Since, p.TxBytes, p.RxBytes = "quic", &rtt, &since, uint64(i)*1e6, 5e9
			p.WayMs, p.RateMbps = &wait, &mbps
			p.Endpoint, p.Reason = "/ip4/9.9.9.9/udp/4001/quic-v1", "symmetric NATs on both sides cannot be punched; lost before: punched over quic"
		}
		s.Peers = append(s.Peers, p)
	}
	return s
}

func shown(on Screen, s control.Status, f Filter) string {
	var b strings.Builder
	Status(&b, on, s, f, now)
	return b.String()
}

func contains(t *testing.T, text string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
}

// 200 nodes fit one screen, whatever their paths are and however low it is: what is in trouble is there, with the reason, and
// the rest is a number.
func TestOneScreen(t *testing.T) {
	for name, s := range map[string]control.Status{"most idle": fleet(200), "all in use": allInUse(fleet(200)), "in trouble": inTrouble(fleet(200))} {
		for _, on := range []Screen{{Width: 80, Height: 24}, {Width: 120, Height: 30}, {Width: 80, Height: 40}, {Width: 120, Height: 50}, {Width: 200, Height: 24}, {Width: 250, Height: 24}, {}} {
			text := shown(on, s, Filter{})
			height := on.Height
			if height == 0 {
				height = 56
			}
			if n := strings.Count(text, "\n"); n >= height {
				t.Errorf("%s, %+v: %d lines\n%s", name, on, n, text)
			}
			contains(t, text, "node edge-0", "v1.2.3", "up 10d", "10.244.0.1", "one port for all", "of them 1 connected", "200: ", "none (20", "relayed (",
				"native (", "more: --path relayed")
			contains(t, strings.Join(strings.Fields(text), " "), "symmetric NATs on both sides cannot be punched; lost before: punched over quic")
			for line := range strings.Lines(text) {
				if n := len([]rune(strings.TrimRight(line, "\n"))); on.Width > 0 && n > on.Width {
					t.Errorf("%s, %+v: a line of %d columns: %s", name, on, n, line)
				}
			}
		}
	}
	contains(t, shown(Screen{}, fleet(200), Filter{}), "; 80 idle")
	contains(t, shown(Screen{}, control.Status{Peers: fleet(4).Peers, Idle: 996}, Filter{}), "1000: ")
	contains(t, shown(Screen{Width: 250, Height: 30}, fleet(200), Filter{}), "ENDPOINT")
	s := inTrouble(fleet(200))
	s.Findings = append(s.Findings, slices.Repeat(s.Findings, 9)...)
	if text := shown(Screen{Width: 80, Height: 24}, s, Filter{}); strings.Count(text, "\n") > 23 {
		t.Errorf("ten problems:\n%s", text)
	} else {
		contains(t, text, "… more: edgemesh-agent doctor", "none (20)")
	}
}

// inTrouble has a problem that takes several lines, three more relays and a second pool.
func inTrouble(s control.Status) control.Status {
	s.Findings = []findings.Finding{findings.Warningf("clock", strings.Repeat("set the clock ", 9), "%s", strings.Repeat("wrong time ", 9))}
	for i := range 3 {
		s.Relays = append(s.Relays, control.RelayStatus{PeerID: fmt.Sprint("12D3KooWspare", i), Addr: "/ip4/5.5.5.6/tcp/4001", Spare: true})
	}
	s.Pools = append(s.Pools, control.Pool{Blocks: []string{"fd00::/64"}, Size: 1 << 62})
	return s
}

func allInUse(s control.Status) control.Status {
	for i := range s.Peers {
		if s.Peers[i].Path == Idle {
			s.Peers[i].Path = "vxlan"
		}
	}
	return s
}

func TestFilters(t *testing.T) {
	s := fleet(200)
	all := shown(Screen{}, s, Filter{All: true})
	for i := range 200 {
		contains(t, all, fmt.Sprintf("  edge-%d ", i+1))
	}
	if strings.Contains(all, "more:") {
		t.Error("--all leaves peers out")
	}
	relayed := shown(Screen{Height: 10}, s, Filter{Path: "relayed"})
	contains(t, relayed, "relayed (40)", "  edge-4 ", "  edge-195 ")
	for _, no := range []string{"native (", "more:"} {
		if strings.Contains(relayed, no) {
			t.Errorf("--path relayed shows %q", no)
		}
	}
	own := shown(Screen{Height: 10}, s, Filter{None: true})
	contains(t, own, "200: ", "RELAY", "POOL")
	if strings.Contains(own, "relayed (") {
		t.Error("of the node itself peers are shown")
	}
	contains(t, shown(Screen{}, s, Filter{Path: "vxlan", Site: "oslo"}), "\nno peer is on path vxlan at site oslo\n")
	oslo := Filter{Site: "oslo", Path: "relayed"}.Peers(s.Peers)
	if len(oslo) != 20 || oslo[0].Site != "oslo" {
		t.Errorf("%d peers at oslo, want 20", len(oslo))
	}
	if got := Sites(s); len(got) != 2 || got[0] != "berlin" {
		t.Errorf("sites %v", got)
	}
}

// In a pipe there are no escape sequences, and what other machines say cannot make any.
func TestPlain(t *testing.T) {
	s := fleet(10)
	s.Peers[0].Reason = "the peer says: \x1b[2J\nbroken   fake"
	s.Peers[1].Site, s.Peers[1].Node = "\x1b]0;x", "e\x1b[31m"
	s.Findings = []findings.Finding{findings.Brokenf("tun", "do this", "x\x1by")}
	for _, text := range []string{shown(Screen{}, s, Filter{All: true}), peerText(s, s.Peers[0]), peerText(s, s.Peers[1])} {
		if strings.Contains(text, "\x1b") || strings.Contains(text, "\nbroken   fake") {
			t.Errorf("not plain: %q", text)
		}
	}
	contains(t, shown(Screen{Colour: true, Width: 300}, s, Filter{}), string(red)+"none (1)", string(red)+"TROUBLE: x?y")
}

func peerText(s control.Status, p control.PeerStatus) string {
	var b strings.Builder
	Peer(&b, Screen{}, s, p, now)
	return b.String()
}

func TestPeer(t *testing.T) {
	s := fleet(10)
	s.Peers[3].Relay, s.Peers[3].LANBytes, s.Peers[3].Drops, s.Peers[3].DropsBy = "12D3KooWrelayrelay", 7e6, 3, map[string]uint64{"delay": 2, "no_route": 1}
	p, err := Find(s, "edge-4")
	if err != nil {
		t.Fatal(err)
	}
	contains(t, peerText(s, p), "relayed over quic, for 11d", "/ip4/9.9.9.9", "12D3KooWrelayrelay at /ip4/5.5.5.5", "received 7.0 MB",
		"3: delay 2, no_route 1", "symmetric NATs", "oslo", "93.7 Mbit/s when last busy", "104.5 ms on the path")
	here := 5.5
	p.QueueMs = &here
	contains(t, peerText(s, p), "5.5 ms here, of the oldest packet; 104.5 ms on the path")
	s.Peers[3] = p
	contains(t, shown(Screen{}, s, Filter{Path: "relayed"}), "110.0 ms", "93.7 Mbit/s")
	for mbps, want := range map[float64]string{0.72: "0.72 Mbit/s", 999.4: "999 Mbit/s", 999.6: "1 Gbit/s", 5230: "5.23 Gbit/s"} {
		if got := rate(&mbps); got != want {
			t.Errorf("%g Mbit/s: %s, want %s", mbps, got, want)
		}
	}
	if p, err := Find(s, "12D3KooWpeer4"); err != nil || p.Node != "edge-4" {
		t.Errorf("by peer ID: %s, %v", p.Node, err)
	}
	if _, err := Find(s, "egde-4"); err == nil || !strings.Contains(err.Error(), "did you mean edge-4") {
		t.Errorf("a mistyped name: %v", err)
	}
}

// Where there is no path, no queue is shown, and no round trip of a relay that is gone; what helps a peer that stays relayed is.
func TestNoPath(t *testing.T) {
	s := fleet(6)
	s.Relays[0].Connected = false
	text := shown(Screen{}, s, Filter{Path: "none"})
	for _, no := range []string{"104.5 ms", "4001  no         yes       12.3 ms"} {
		if strings.Contains(text, no) {
			t.Errorf("%q is of a path that is gone:\n%s", no, text)
		}
	}
	s.Peers[3].Reason = "relayed: both NATs give each destination another port; " + portguess.BothRandom
	contains(t, peerText(s, s.Peers[3]), "remedy ", "port mapping")
	s.Peers[3].Reason += "; native: 192.168.1.9 on eth0: " + decide.NoAnswer
	contains(t, peerText(s, s.Peers[3]), "same LAN? ", "client isolation", "two sites? ", "port mapping")
	s.Peers[3].Reason = strings.Replace(s.Peers[3].Reason, decide.NoAnswer, decide.Unresolved, 1)
	contains(t, peerText(s, s.Peers[3]), "same LAN? ", "keeps its hosts apart", "two sites? ")
	s.Peers[3].Reason = strings.Replace(s.Peers[3].Reason, decide.Unresolved, decide.Filtered, 1)
	contains(t, peerText(s, s.Peers[3]), "remedy ", "accept UDP ports 5210 and 5211")
	if text := peerText(s, s.Peers[3]); strings.Contains(text, "port mapping") {
		t.Errorf("on one LAN:\n%s", text)
	}
	if text := peerText(s, s.Peers[4]); strings.Contains(text, "remedy ") || strings.Contains(text, "same LAN?") {
		t.Errorf("a remedy of another cause:\n%s", text)
	}
}

// What is to be done next fits where it has to be done.
func TestNext(t *testing.T) {
	for id, want := range map[string]string{"peer-offline": "edgemesh-agent doctor, on edge-3", "peer-unreachable": "edgemesh-agent doctor edge-3", "clock": "edgemesh-agent doctor"} {
		if got := Next(control.Status{Findings: []findings.Finding{findings.Warningf(id, "x", "y").About("edge-3")}}); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", -time.Second: "0s", 45 * time.Second: "45s", 192 * time.Second: "3m12s", 2 * time.Hour: "2h", 4*time.Hour + 7*time.Minute: "4h7m",
		50 * time.Hour: "2d2h", 240 * time.Hour: "10d", 245 * time.Hour: "10d",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestPing(t *testing.T) {
	var b strings.Builder
	ms := 12.345
	Probe(&b, Screen{}, "edge-2", control.PingResult{Seq: 1, RTTMs: &ms, Path: "relayed", Transport: "relay/tcp", Relay: "12D3KooWabcdefgh"})
	Probe(&b, Screen{}, "edge-2", control.PingResult{Seq: 2, Error: "a library's text\x1b"})
	Pinged(&b, Screen{}, control.PingReply{Node: "edge-2", PodIP: "10.1.1.1", Path: "relayed", Sent: 2, Received: 1, MinMs: &ms, AvgMs: &ms, MaxMs: &ms, Reason: "a firewall"})
	contains(t, b.String(), "edge-2: seq 1  12.35 ms  relayed over relay/tcp via …abcdefgh\n", "seq 2  lost: no answer\n",
		"pod 10.1.1.1 is on node edge-2: 2 sent, 1 received", "not a better path: a firewall\n")
	b.Reset()
	Pinged(&b, Screen{}, control.PingReply{Node: "edge-2", Sent: 1})
	contains(t, b.String(), "1 sent, 0 received, path unknown\n")
	for path, want := range map[string]bool{"native": true, "vxlan": true, "direct": true, "punched": true, "relayed": false, "none": false, "": false} {
		if DirectOrBetter(path) != want {
			t.Errorf("%s: direct or better is %v", path, !want)
		}
	}
}

// 1,000 nodes: what `status` takes from the request over the agent's socket to the last line.
func BenchmarkStatus1000(b *testing.B) {
	dir := b.TempDir()
	s, err := control.Serve(dir, fixed{fleet(1000)}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		st, err := control.NewClient(dir).Status(b.Context())
		if err != nil || len(st.Peers) != 1000 {
			b.Fatal(err)
		}
		if text := shown(Screen{Width: 160, Height: 50}, st, Filter{}); len(text) == 0 {
			b.Fatal("nothing")
		}
	}
}

// fixed is a backend with one status.
type fixed struct{ status control.Status }

func (f fixed) Status(bool) control.Status { return f.status }
func (fixed) Ping(context.Context, control.PingRequest, func(control.PingResult)) (control.PingReply, error) {
	return control.PingReply{}, nil
}
func (fixed) Doctor(context.Context) []findings.Finding                   { return nil }
func (fixed) Explain(context.Context, string) ([]findings.Finding, error) { return nil, nil }
func (fixed) Observe(context.Context, func(any) error) error              { return nil }
func (fixed) LogLevel() *slog.LevelVar                                    { return new(slog.LevelVar) }
func (fixed) Policies(string) control.Policies                            { return control.Policies{} }

// A path that only a newer agent knows is shown under its own name.
func TestUnknownPath(t *testing.T) {
	s := fleet(40)
	for i := range 3 {
		s.Peers[i].Path = "wormhole\x1b"
	}
	for _, f := range []Filter{{}, {All: true}} {
		contains(t, shown(Screen{}, s, f), "3 wormhole?", "wormhole? (3)")
	}
}
