package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"edgemesh/test/lab"
)

// keys returns the sorted keys of a JSON object.
func keys(t *testing.T, raw json.RawMessage) []string {
	t.Helper()
	var m map[string]json.RawMessage
	ok(t, json.Unmarshal(raw, &m))
	var ks []string
	for k := range m {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

// hasKeys wants all of the keys in the object; more are allowed.
func hasKeys(t *testing.T, what string, raw json.RawMessage, want ...string) {
	t.Helper()
	have := keys(t, raw)
	for _, k := range want {
		if !slices.Contains(have, k) {
			t.Errorf("%s has no key %q: %v", what, k, have)
		}
	}
}

// contracts holds the JSON of status and ping.
func (s *sites) contracts(t *testing.T) {
	for name, holds := range map[string]func(*testing.T){"Status": s.statusContract, "Ping": s.pingContract} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holds(t)
		})
	}
}

func (s *sites) statusContract(t *testing.T) {
	out, stderr, err := s.edge1.AgentCommand(t.Context(), "status", "--json", "--runtime-dir",
		s.edge1.Config.RuntimeDir)
	ok(t, err)
	if stderr != "" {
		t.Errorf("standard error: %s", stderr)
	}
	var st struct {
		Relays []json.RawMessage `json:"relays"`
		Peers  []json.RawMessage `json:"peers"`
	}
	ok(t, json.Unmarshal([]byte(out), &st))
	hasKeys(t, "status", json.RawMessage(out), "node", "peerID", "addresses", "relays", "peers")
	if len(st.Relays) != 1 {
		t.Errorf("%d relays listed; the one has two addresses and one peer ID", len(st.Relays))
	}
	for _, r := range st.Relays {
		hasKeys(t, "relay", r, "peerID", "addr", "connected", "reserved")
	}
	for _, p := range st.Peers {
		hasKeys(t, "peer", p, "node", "peerID", "podCIDRs", "path", "transport", "rttMs", "since", "reason",
			"txBytes", "rxBytes", "drops")
	}
	full, err := s.edge1.Status(t.Context())
	ok(t, err)
	if full.Node != "edge-1" || full.PeerID != s.edge1.PeerID || full.Relays[0].PeerID != s.relay.PeerID {
		t.Errorf("status is %+v", full)
	}
	// Each family's block: at least one pod of the node is in it.
	if len(full.Pools) != 2 || full.Pools[0].Size != 253 || full.Pools[0].Used == 0 || full.Pools[1].Used == 0 {
		t.Errorf("pools are %+v", full.Pools)
	}
	p := full.Peer("edge-2")
	if p.RTTMs == nil || *p.RTTMs <= 0 || *p.RTTMs > 1000 || p.Since == nil || p.TxBytes == 0 || p.RxBytes == 0 ||
		p.Transport == "" {
		t.Errorf("an active peer is %+v", p)
	}
	// Two nodes of one LAN see each other at addresses they own.
	curlPods(t, s.pod1, s.pod3, 2*time.Second)
	if _, err := s.edge1.WaitPath(within(t, 10*time.Second), s.edge3, "direct", "native", "vxlan"); err != nil {
		t.Errorf("same LAN: %v", err)
	}
	curlPods(t, s.podCloud, s.pod4, 2*time.Second)
	if _, err := s.cloud1.WaitPath(within(t, 10*time.Second), s.only4, "direct"); err != nil {
		t.Errorf("two nodes without NAT: %v", err)
	}
	if _, err := s.edge1.WaitPath(within(t, 10*time.Second), s.cloud1, "direct"); err != nil {
		t.Errorf("NATed and public node: %v", err)
	}
	metrics, err := s.edge1.Run(t.Context(), "curl", "-sS", "-m", "2", "http://127.0.0.1:9469/metrics")
	ok(t, err)
	contains(t, metrics, "edgemesh_", `edgemesh_pool_size{family="ipv4"} 253`,
		`edgemesh_pool_addresses{family="ipv6",state="used"}`, `edgemesh_tunnel_drops_total{reason="delay"}`,
		"edgemesh_tunnel_ecn_marks_total ", "edgemesh_build_info{", `edgemesh_peers{path="none"} `, `edgemesh_peers{path="vxlan"} `,
		`edgemesh_path_bytes_total{direction="tx",path="punched"} `, `edgemesh_lan_received_bytes_total{path="native"} `,
		`edgemesh_punch_attempts_total{here="stable",result="direct",there="stable"} `, `edgemesh_probe_rtt_seconds_count{path="relayed"} `)
	if problems, err := promlint.New(strings.NewReader(metrics)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %+v, %v", problems, err)
	}
	_, err = s.edge1.Run(t.Context(), "curl", "-fsS", "-m", "2", "http://127.0.0.1:9469/readyz")
	ok(t, err)
	for _, page := range []string{"healthz", "readyz", "metrics"} {
		if _, err := s.relay.Run(t.Context(), "curl", "-fsS", "-m", "2", "http://127.0.0.1:9470/"+page); err != nil {
			t.Errorf("relay: %v", err)
		}
	}
	text, _, err := s.edge1.AgentCommand(t.Context(), "status", "--runtime-dir", s.edge1.Config.RuntimeDir)
	ok(t, err)
	contains(t, text, "edge-1", "edge-2", "punched", s.relay.Addr, "warnings", "up ")
	of := func(code int, args ...string) string {
		t.Helper()
		out, stderr, err := s.edge1.AgentCommand(t.Context(), append(args, "--runtime-dir", s.edge1.Config.RuntimeDir)...)
		var exit *lab.ExitError
		if err != nil && (!errors.As(err, &exit) || exit.Code != code) || err == nil && code != 0 {
			t.Errorf("%v: %v, want code %d\n%s%s", args, err, code, out, stderr)
		}
		return out + stderr
	}
	contains(t, of(0, "status", "edge-2"), "endpoint", "punched over", "round trip")
	contains(t, of(1, "status", "egde-2"), "did you mean edge-2")
	contains(t, of(0, "status", "--path", "punched"), "punched (", "edge-2")
	contains(t, of(2, "status", "--path", "fast"), "--path", "relayed")
	contains(t, of(1, "status", "--site", "atlantis"), "atlantis")
	contains(t, of(0, "ping", "edge-2", "--until-direct", "--timeout", "5s"), "seq 1", "punched")
	contains(t, of(1, "ping", "egde-2"), "did you mean edge-2")
	contains(t, of(0, "doctor", s.pod2.IP4().String()), "owner", "of node edge-2", "over edgemesh-tun", "the agent of edge-2 answers", "answers 2 of 2",
		"on edge-2: "+s.pod2.IP4().String()+" is this node's", "on edge-2: "+s.pod2.IP4().String()+" answers its own node")
	contains(t, of(1, "doctor", "10.244.2.199"), "answers none", "check that the pod runs", "on edge-3: no pod of this node has the address 10.244.2.199")
	s.captures(t)
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	contains(t, of(0, "doctor", "--bundle", file, "--config", s.edge1.ConfigFile()), "status.json", "agent.yaml", "written to "+file)
	contains(t, of(0, "log-level", "debug")+of(0, "log-level", "info"), "debug", "info")
	contains(t, of(2, "log-level", "loud"), "LEVEL", "debug, info, warn, error")
	contains(t, of(1, "ping", "192.0.2.1"), "outside the cluster's pod ranges")
}

func (s *sites) pingContract(t *testing.T) {
	for _, target := range []string{"edge-2", s.pod2.IP4().String(), s.pod2.IP6().String(), s.near1.IP4().String()} {
		elapsed := stopwatch(t)
		p, err := s.edge1.AgentPing(t.Context(), target, 3)
		if err != nil || p.Sent != 3 || p.Received != 3 {
			t.Errorf("ping %s: %+v %v", target, p, err)
		}
		if took := elapsed(); took > 10*time.Second {
			t.Errorf("ping %s took %v", target, took)
		}
	}
	out, _, err := s.edge1.AgentCommand(t.Context(), "ping", "edge-2", "--json", "--runtime-dir",
		s.edge1.Config.RuntimeDir)
	ok(t, err)
	var p lab.AgentPing
	ok(t, json.Unmarshal([]byte(out), &p))
	if p.Sent != 4 {
		t.Errorf("%d probes without --count, want 4", p.Sent)
	}
	for _, tc := range []struct {
		target string
		codes  []int
		names  string
	}{
		{"nosuch-node", []int{1, 2}, "nosuch-node"},
		{"10.244.2.199", []int{1}, "10.244.2.199"}, // a free address of a member
		{"10.244.222.1", []int{1, 2}, "10.244.222.1"},
	} {
		elapsed := stopwatch(t)
		out, stderr, err := s.edge1.AgentCommand(t.Context(), "ping", tc.target, "--json", "--runtime-dir",
			s.edge1.Config.RuntimeDir)
		var exit *lab.ExitError
		if !errors.As(err, &exit) || !slices.Contains(tc.codes, exit.Code) {
			t.Errorf("ping %s: %v, want code %v", tc.target, err, tc.codes)
		}
		contains(t, stderr, tc.names)
		if out != "" && !json.Valid([]byte(out)) {
			t.Errorf("ping %s --json: standard output is not JSON: %s", tc.target, out)
		}
		if took := elapsed(); took > 10*time.Second {
			t.Errorf("ping %s took %v", tc.target, took)
		}
	}
	// No agent here: another runtime directory.
	for _, sub := range [][]string{{"status"}, {"ping", "edge-2"}, {"doctor"}} {
		dir := t.TempDir()
		out, stderr, err := s.edge1.AgentCommand(t.Context(), append(sub, "--runtime-dir", dir)...)
		var exit *lab.ExitError
		if !errors.As(err, &exit) || exit.Code != 1 {
			t.Errorf("%v without an agent: %v, want code 1", sub, err)
		}
		contains(t, out+stderr, "no agent is running")
	}
}

// captures has edge-1 see what its pod and one at another site send each other.
func (s *sites) captures(t *testing.T) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	captured := make(chan string, 1)
	go func() {
		out, stderr, err := s.edge1.AgentCommand(ctx, "capture", "--peer", "edge-2", "--pod", s.pod2.IP4().String(), "--count", "4", "--duration", "15s",
			"--runtime-dir", s.edge1.Config.RuntimeDir)
		captured <- fmt.Sprint(out, stderr, err)
	}()
	for {
		_ = s.pod1.Ping(ctx, s.pod2.IP4().String(), time.Second) // whether it is answered others test
		select {
		case out := <-captured:
			contains(t, out, s.pod1.IP4().String()+" > "+s.pod2.IP4().String()+" ICMP", " in ", " out ", "peer edge-2, path punched", "4 packets, 0 more")
			return
		default:
		}
	}
}

// finding is one element of `edgemesh-agent doctor --json`.
type finding struct {
	Check    string `json:"id"`
	Severity string `json:"severity"`
	Detail   string `json:"text"`
	Remedy   string `json:"remedy"`
	Node     string `json:"node"`
}

// doctorOf runs doctor on the node, about one destination if there is one.
func doctorOf(t *testing.T, n *lab.Node, to ...string) (code int, all []finding) {
	t.Helper()
	out, stderr, err := n.AgentCommand(within(t, 30*time.Second), append([]string{"doctor", "--json", "--runtime-dir", n.Config.RuntimeDir}, to...)...)
	var exit *lab.ExitError
	if errors.As(err, &exit) {
		code = exit.Code
	} else {
		ok(t, err)
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("doctor --json: %v: %s%s", err, out, stderr)
	}
	return code, all
}

func (s *sites) doctor(t *testing.T) {
	code, all := doctorOf(t, s.edge1)
	var names []string
	for _, f := range all {
		names = append(names, f.Check)
		if f.Severity != "ok" {
			t.Logf("when all is well: %+v", f)
		}
		if f.Severity != "ok" && f.Remedy == "" {
			t.Errorf("no remedy: %+v", f)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d when all is well: %+v", code, all)
	}
	for _, want := range []string{"key", "membership", "relay", "tun", "route", "forward", "firewall"} {
		if !slices.ContainsFunc(names, func(n string) bool { return strings.Contains(strings.ToLower(n), want) }) {
			t.Errorf("no check of %s: %v", want, names)
		}
	}
	// The only relay dead: who is behind a NAT can no longer be reached.
	s.relay.Process.Kill()
	code, all = doctorOf(t, s.edge1)
	found := false
	for _, f := range all {
		if strings.Contains(f.Check, "relay") && f.Severity != "ok" {
			found = true
			if f.Remedy == "" || f.Detail == "" {
				t.Errorf("no cause or remedy: %+v", f)
			}
		}
	}
	if !found {
		t.Errorf("a dead relay is not noticed, exit code %d: %+v", code, all)
	}
	ok(t, s.relay.Start())
	ok(t, s.relay.WaitReservations(within(t, 10*time.Second), len(s.lab.Nodes())))
	ready(t, s.lab.Nodes()...)
	if code, all := doctorOf(t, s.edge1); code != 0 {
		t.Errorf("exit code %d when the relay is back: %+v", code, all)
	}
	// Forwarding switched off by another program: either it is put right or it is named.
	ok(t, s.edge1.Script("sysctl -qw net.ipv4.ip_forward=0"))
	if _, all := doctorOf(t, s.edge1); s.pod1.Ping(t.Context(), s.pod2.IP4().String(), time.Second) != nil {
		if !slices.ContainsFunc(all, func(f finding) bool {
			return strings.Contains(f.Check, "forward") && f.Severity == "broken" && f.Remedy != ""
		}) {
			t.Errorf("forwarding off, pods do not reach each other, and doctor says %+v", all)
		}
	}
	ok(t, s.edge1.Script("sysctl -qw net.ipv4.ip_forward=1"))
	curl(t, s.pod1.NS, s.pod2, s.pod2.IP4(), netip.Addr{}, 2*time.Second)
}
