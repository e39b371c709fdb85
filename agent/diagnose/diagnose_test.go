package diagnose

import (
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/netcheck"
	"edgemesh/internal/cause"
	"edgemesh/internal/proxy"
	"edgemesh/tunnel/p2p/relay/relays"
)

// one wants a single finding with this severity, check and text, and a remedy unless it is well.
func one(t *testing.T, name string, all []findings.Finding, severity findings.Severity, check, says string) {
	t.Helper()
	if len(all) != 1 {
		t.Errorf("%s: %+v, want one finding", name, all)
		return
	}
	f := all[0]
	if f.Severity != severity || f.ID != check || !strings.Contains(f.Text+" → "+f.Remedy, says) || (f.Remedy == "") != (severity == findings.OK) {
		t.Errorf("%s: %+v, want %s %s: %s", name, f, severity, check, says)
	}
}

// What is well names what was looked at.
func TestOKNames(t *testing.T) {
	ms := 1.0
	one(t, "udp", UDP([]netcheck.Relay{{UDP: &netcheck.Answer{Addr: "/ip4/5.5.5.5/udp/1", RTTMs: &ms}}}, nil, nil), findings.OK, "udp", "1 relay answers by UDP: /ip4/5.5.5.5/udp/1")
	one(t, "mtu", MTU([]control.PeerStatus{{Path: "native"}, {Path: "relayed"}}), findings.OK, "mtu", "1 of 2 peers")
	one(t, "peers", Peers([]control.PeerStatus{{Path: "native"}}, nil), findings.OK, "peers", "1 peer in use, each with a path")
	one(t, "peers", Peers([]control.PeerStatus{{Path: "native", Transport: "ip"}, {Path: "punched", Transport: "sealed"}, {Path: "direct", Transport: "sealed"}}, nil),
		findings.OK, "peers", "3 peers in use, each with a path: 1 over ip, 2 over sealed")
}

// A wrong clock is a warning, and the cause where relays refuse this node.
func TestClock(t *testing.T) {
	one(t, "nobody reported the time", Clock(nil, true), findings.Skipped, "clock", "not compared")
	one(t, "well", Clock(&netcheck.Clock{OffsetMs: 900, Relay: "r"}, true), findings.OK, "clock", "1s from relay r's")
	one(t, "ahead", Clock(&netcheck.Clock{OffsetMs: 7_200_000}, false), findings.Warning, "clock", "by 2h")
	one(t, "31 s, and nothing works", Clock(&netcheck.Clock{OffsetMs: 31_000}, true), findings.Warning, "clock", "by 31s: times in the nodes' logs")
	one(t, "behind, and nothing works", Clock(&netcheck.Clock{OffsetMs: -7_200_000}, true), findings.Broken, "clock", "by -2h: certificates and tokens are refused → set the clock")
}

// A relay that answers by TCP alone is named; whether others answer by UDP says whose firewall it is.
func TestUDP(t *testing.T) {
	ms := 1.0
	yes := func(a string) *netcheck.Answer { return &netcheck.Answer{Addr: a, RTTMs: &ms} }
	no := func(a string) *netcheck.Answer { return &netcheck.Answer{Addr: a, Error: "no answer"} }
	const at = "/ip4/5.5.5.5/udp/4470/quic-v1"
	good := netcheck.Relay{PeerID: "good", TCP: yes("t"), UDP: yes("u")}
	closed := netcheck.Relay{PeerID: "closed", TCP: yes("t"), UDP: no(at)}
	one(t, "well", UDP([]netcheck.Relay{good}, nil, nil), findings.OK, "udp", "1 relay answers")
	one(t, "one of two", UDP([]netcheck.Relay{good, closed}, nil, nil), findings.Warning, "udp", "relay closed answers by TCP, but not by UDP at "+at)
	one(t, "one of two", UDP([]netcheck.Relay{good, closed}, nil, nil), findings.Warning, "udp", "relay's firewall and its provider's (security group): other relays")
	one(t, "the only one", UDP([]netcheck.Relay{closed}, nil, nil), findings.Warning, "udp", "run `edgemesh-agent netcheck` at another site")
	one(t, "UDP leaves", UDP([]netcheck.Relay{closed}, []string{"edge-2"}, []string{"edge-3"}), findings.Warning, "udp", "relay's firewall and its provider's (security group): UDP leaves this site, since it reaches edge-2")
	one(t, "UDP leaves for nobody", UDP([]netcheck.Relay{closed}, nil, []string{"edge-3"}), findings.Warning, "udp", "→ allow outgoing UDP in this site's firewall: edge-3")
	for name, r := range map[string]netcheck.Relay{"dead": {TCP: no("t"), UDP: no(at)}, "without UDP": {TCP: yes("t")}} {
		if got := UDP([]netcheck.Relay{r}, nil, nil); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The proxy's refusal has the remedy that fits.
func TestProxy(t *testing.T) {
	for cause, says := range map[proxy.Cause]string{
		proxy.Unauthorized: "→ write them, as user:password, to the file that proxyCredentials names",
		proxy.Forbidden:    "→ have it allowed",
		proxy.Unanswered:   "→ check that the relay runs",
		proxy.Garbled:      "→ check the relay's address and port",
		proxy.Refused:      "→ look at the proxy's log",
	} {
		one(t, string(cause), []findings.Finding{Proxy("12D3 at x", cause, false)}, findings.Broken, "proxy", says)
	}
	one(t, "another relay is reserved", []findings.Finding{Proxy("12D3 at x", proxy.Unauthorized, true)}, findings.Warning, "proxy", "12D3 at x: the proxy does not accept user and password, or requires them (407) →")
}

// A LAN that loses large packets is named, and a path that does.
func TestMTU(t *testing.T) {
	peers := []control.PeerStatus{{Node: "a", Reason: "native: probes of 1500 bytes are lost, small ones pass"}, {Node: "b", Reason: "native: no answer"}, {Node: "c"}}
	one(t, "LAN", MTU(peers), findings.Warning, "mtu", "a: native: probes of 1500 bytes are lost")
	one(t, "large ones pass", []findings.Finding{Large("b", "10.1.1.1", "native", 1500, 1, 2)}, findings.OK, "size", "1 of 2 packets of 1500 bytes")
	for path, want := range map[string]string{"native": "between here and b (path: native)", "punched": "between here and b (path: punched)", "relayed": "between the relay and here or b (path: relayed)"} {
		f := Large("b", "10.1.1.1", path, 1500, 0, 2)
		one(t, "large ones are lost", []findings.Finding{f}, findings.Broken, "size", want)
		if strings.Contains(f.Remedy, "LAN paths") != (path == "native") {
			t.Errorf("%s: %s", path, f.Remedy)
		}
	}
}

// A pool is full when pods have every address; kept ones are given away.
func TestPools(t *testing.T) {
	pool := func(used, kept int) []control.Pool {
		return []control.Pool{{Blocks: []string{"10.1.0.0/24"}, Size: 253, Used: used, Kept: kept}}
	}
	one(t, "kept", Pools(pool(10, 243)), findings.OK, "pool", "10 of 253 addresses of 10.1.0.0/24")
	one(t, "nearly full", Pools(pool(240, 0)), findings.Warning, "pool", "240 of 253")
	one(t, "large", Pools([]control.Pool{{Blocks: []string{"10.0.0.0/16"}, Size: 65536, Used: 65000}}), findings.Warning, "pool", "65,000 of 65,536")
	one(t, "full", Pools(pool(253, 0)), findings.Broken, "pool", "new pods get none → delete pods")
}

func names(all []findings.Finding) string {
	var out []string
	for _, f := range all {
		out = append(out, strings.TrimSpace(string(f.Severity)+" "+f.ID+" "+f.Subject))
	}
	return strings.Join(out, "; ")
}

// What relays do for all: one alone, and one that lacks what is signed for more than a minute.
func TestRelayService(t *testing.T) {
	now := time.Now()
	longest, long, short := now.Add(-6*time.Minute), now.Add(-2*time.Minute), now.Add(-30*time.Second)
	if got := names(RelayService([]control.RelayStatus{{PeerID: "a", Behind: &longest}}, false, now)); got != "note one-relay; warning relay-behind a" {
		t.Error(got)
	}
	if got := names(RelayService([]control.RelayStatus{{PeerID: "a", Behind: &long, Lacks: 1, Lacking: []string{"n1"}}, {PeerID: "b", Behind: &long}}, false, now)); got != "warning relay-behind a" {
		t.Error(got)
	}
	if got := names(RelayService([]control.RelayStatus{{PeerID: "a", Behind: &short, Lacks: 1, Version: "v9.9.0"}, {PeerID: "b", Knows: true}}, false, now)); got != "" {
		t.Error(got)
	}
}

// With one relay of two dead the node works; with none it is broken, and so it is where the relay refuses. What was not tried
// yet is skipped.
func TestRelays(t *testing.T) {
	well := relays.Status{ID: "A", Connected: true, Reserved: true}
	dead, refuses := relays.Status{ID: "B", Failed: true, Error: "timeout"}, relays.Status{ID: "B", Connected: true, Failed: true, Error: "PERMISSION_DENIED"}
	a, b := well.ID.String(), dead.ID.String()
	for name, c := range map[string]struct {
		all    []relays.Status
		served bool
		want   string
	}{
		"none":                {nil, false, "warning no-relays"},
		"is one itself":       {nil, true, ""},
		"well":                {[]relays.Status{well, {ID: "B", Spare: true}}, false, "ok relays " + a + "; ok relays " + b},
		"one is dead":         {[]relays.Status{well, dead}, false, "ok relays " + a + "; warning relay-unreachable " + b},
		"the only one is":     {[]relays.Status{dead}, false, "broken relay-unreachable " + b},
		"its name is unknown": {[]relays.Status{{ID: "B", Failed: true, Cause: cause.NoName, Error: "lookup: no answer"}}, false, "broken relay-unreachable " + b},
		"the only one's key":  {[]relays.Status{refuses}, false, "broken relay-refuses " + b},
		"starting":            {[]relays.Status{{ID: "B", Error: "no answer yet"}}, false, "skipped relays " + b},
		"the proxy refuses":   {[]relays.Status{{ID: "B", Failed: true, Error: "407", Refusal: proxy.Unauthorized}}, false, "broken proxy " + b},
	} {
		if got := names(Relays(c.all, c.served)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// An uplink is dead if the kernel says so, or if of several relays none answers and no peer does, unless one refuses: then
// packets arrive.
func TestUplink(t *testing.T) {
	silent, refused := relays.Status{ID: "A", Failed: true, Error: "i/o timeout"}, relays.Status{ID: "B", Failed: true, Cause: cause.Refused}
	two := []relays.Status{silent, {ID: "B", Failed: true, Error: "i/o timeout"}}
	for name, c := range map[string]struct {
		why   string
		all   []relays.Status
		peers []control.PeerStatus
		want  findings.Severity
	}{
		"no route":                 {"no route", nil, nil, findings.Broken},
		"but a relay is connected": {"no route", []relays.Status{silent, {ID: "B", Connected: true}}, nil, findings.OK},
		"but a peer is there":      {"no route", nil, []control.PeerStatus{{Path: "direct"}}, findings.OK},
		"none answers":             {"", two, nil, findings.Broken},
		"a peer does":              {"", two, []control.PeerStatus{{Path: "direct"}}, findings.OK},
		"only the LAN does":        {"", two, []control.PeerStatus{{Path: "native"}}, findings.Broken},
		"one relay is dead":        {"", two[:1], nil, findings.OK},
		"one refuses":              {"", []relays.Status{silent, refused}, nil, findings.OK},
		"one was not tried":        {"", []relays.Status{silent, {ID: "B"}}, nil, findings.OK},
		"one has no answer ":       {"", []relays.Status{silent, {ID: "B", Connected: true, Failed: true}}, nil, findings.OK},
	} {
		if got := Uplink(c.why, c.all, c.peers); len(got) != 1 || got[0].Severity != c.want || (got[0].Remedy == "") != (c.want == findings.OK) {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
}

// Where nothing is connected, the kernel knows more than silence does: the latter may be the relays'.
func TestUplinkCause(t *testing.T) {
	two := []relays.Status{{ID: "A", Failed: true, Error: "i/o timeout"}, {ID: "B", Failed: true, Error: "i/o timeout"}}
	one(t, "the kernel", Uplink("no route", two, nil), findings.Broken, "uplink", "cut off: no route")
	one(t, "silence", Uplink("", two, nil), findings.Broken, "no-relay-answers", "or all relays are off → check this site's internet")
}

// A peer that no relay has is off, since it was refused first; one that connects is not judged yet; an idle one never.
func TestPeers(t *testing.T) {
	since := time.Unix(1000, 0)
	used := []control.PeerStatus{{Node: "a", Path: "none", Offline: &since, Failed: true}, {Node: "b", Path: "none", Failed: true, Cause: cause.NoCircuit, Reason: "a library's text"},
		{Node: "c", Path: "none"}, {Node: "d", Path: "idle", Offline: &since}, {Node: "e", Path: "direct"}}
	got := Peers(used, nil)
	if want := "warning peer-offline a; warning peer-unreachable b; skipped peers c"; names(got) != want || !got[0].Since.Equal(since) ||
		!strings.Contains(got[0].Text, "a is offline: no relay has it (first refused ") || got[1].Text != "no path to b: a relay gives no circuit to it" ||
		!strings.Contains(got[0].Remedy, "`edgemesh-agent doctor` on a says more") {
		t.Errorf("%+v, want %s", got, want)
	}
	for name, c := range map[string]struct {
		relays []relays.Status
		want   string
	}{
		"the only relay is dead":     {[]relays.Status{{ID: "R", Failed: true}}, "warning peer-unreachable c"},
		"one of two is":              {[]relays.Status{{ID: "R", Failed: true}, {ID: "S", Reserved: true}}, "skipped peers c"},
		"nothing has been tried yet": {[]relays.Status{{ID: "R"}}, "skipped peers c"},
	} {
		got := Peers(used[2:3], c.relays)
		if names(got) != c.want {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
		if all := findings.Causes(append(Relays(c.relays, false), got...)); name == "the only relay is dead" && (all[0].ID != "relay-unreachable" || !slices.Equal(all[0].Victims, []string{"peer-unreachable c"})) {
			t.Errorf("the relay's victims: %+v", all)
		}
	}
	for want, p := range map[string]control.PeerStatus{
		"b does not answer (last heard 1970-01-01 00:16:40)":     {LastHeard: &since, Cause: cause.NoAnswer},
		"b does not answer (not heard since this agent started)": {Cause: cause.NoAnswer},
		"no path to b: no way to it opens":                       {Cause: cause.Other},
	} {
		p.Node, p.Path, p.Silent, p.Failed, p.Reason = "b", "none", true, true, "look up in DHT: not found"
		if got := Peers([]control.PeerStatus{p}, nil); names(got) != "warning peer-unreachable b" || got[0].Text != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	if got := names(Peers([]control.PeerStatus{{Node: "e", Path: "direct"}}, nil)); got != "ok peers" {
		t.Errorf("%s", got)
	}
}
