package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// resolver runs a program with these name servers in /etc/resolv.conf.
func resolver(t *testing.T, n *lab.Node, servers ...string) []string {
	t.Helper()
	conf := filepath.Join(n.Dir, "resolv.conf")
	ok(t, os.WriteFile(conf, []byte("nameserver "+strings.Join(servers, "\nnameserver ")+"\n"), 0o644))
	return []string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, conf}
}

// startBy starts a node's agent by a program that changes what it sees of its host.
func startBy(t *testing.T, n *lab.Node, run []string) {
	t.Helper()
	var err error
	n.Agent, err = n.NS.Start(n.Name, slices.Concat(run, []string{n.AgentPath(), "run", "--config", n.ConfigFile()})...)
	ok(t, err)
}

// forgets removes what a node's agent has learnt of relays' addresses.
func forgets(n *lab.Node) {
	for _, name := range []string{"names.json", "addresses.json"} {
		_ = os.Remove(filepath.Join(n.Config.StateDir, name))
	}
}

// A relay by name: half an answer of DNS, a name server that is dead, or all of them once the relay is known, keep no node
// offline. The other node knows the relay's address.
func TestHalfDeadNameServers(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	far := node(t, site(t, l, "far", lab.Symmetric), "edge-2", lab.NodeOptions{})
	n := node(t, site(t, l, "near", lab.Symmetric), "edge-1", lab.NodeOptions{})
	dns, at, err := l.AddStranger("dns", 2)
	ok(t, err)
	dead := at.Next().String()
	ok(t, dns.Script("iptables -w -A INPUT -d "+dead+" -j DROP"))
	startRelays(t, l)
	ok(t, far.Start())
	ready(t, far)
	to := pod(t, far, "to")
	byName(t, l, n, r)
	ok(t, n.WriteConfig())

	var server *lab.Process
	serve := func(args ...string) {
		t.Helper()
		server, err = dns.Start("dns", append(append([]string{n.ToolPath(), "names"}, args...), at.String(), r.Addr)...)
		ok(t, err)
	}
	var from *lab.Pod
	// first starts the agent and returns when its pod has been answered from the other site.
	first := func(servers ...string) time.Duration {
		t.Helper()
		elapsed := stopwatch(t)
		startBy(t, n, resolver(t, n, servers...))
		ctx := within(t, 20*time.Second)
		ok(t, n.WaitPods(ctx))
		if from == nil {
			from = pod(t, n, "from")
		}
		ok(t, lab.Until(ctx, 20*time.Millisecond, func() error {
			return tryCurl(ctx, from.NS, to, pairs(from, to)[0][1], pairs(from, to)[0][0], fair.Slowest*time.Second)
		}))
		return elapsed()
	}
	for _, x := range []struct {
		what    string
		faults  []string
		servers []string
		within  time.Duration
	}{
		{"nothing is wrong", nil, []string{at.String()}, 2 * time.Second},
		{"AAAA is never answered", []string{"--no-aaaa"}, []string{at.String()}, 2 * time.Second},
		{"AAAA comes after 5 s", []string{"--late-aaaa=5s"}, []string{at.String()}, 2 * time.Second},
		{"the first name server is dead", nil, []string{dead, at.String()}, 8 * time.Second},
	} {
		var took []float64
		for remeasure(took, millis(x.within)) { // a machine that stands still for a moment is no name server's fault
			serve(x.faults...)
			took = append(took, millis(first(x.servers...)))
			ok(t, n.Agent.Stop())
			ok(t, server.Stop())
			forgets(n)
		}
		t.Logf("%s: first curl after %.0f ms", x.what, took)
		if m := median(took); m > millis(x.within) {
			t.Errorf("%s: the first curl took %.0f ms, the median of %.0f, want at most %v", x.what, m, took, x.within)
		}
	}

	serve()
	first(at.String())
	ok(t, server.Stop())
	ok(t, dns.Script("iptables -w -A INPUT -p udp --dport 53 -j DROP"))
	r.Process.Kill()
	ok(t, r.Start())
	elapsed := stopwatch(t)
	ok(t, r.WaitReservations(within(t, 30*time.Second), 2))
	if took := elapsed(); took > 5*time.Second {
		t.Errorf("reserved at a relay that was restarted while DNS was dead after %v, want at most 5 s", took)
	} else {
		t.Logf("reserved again after %v", took)
	}
	ok(t, n.Agent.Stop())
	_ = os.Remove(filepath.Join(n.Config.StateDir, "addresses.json"))
	took := first(at.String())
	if t.Logf("agent restarted while DNS is dead: first curl after %v", took); took > 5*time.Second {
		t.Error("want at most 5 s")
	}

	// Without an address of old, the name server is what is to be repaired, and not the relay's host or a firewall.
	ok(t, n.Agent.Stop())
	_ = os.Remove(filepath.Join(n.Config.StateDir, "names.json"))
	_ = os.Remove(filepath.Join(n.Config.StateDir, "addresses.json"))
	startBy(t, n, resolver(t, n, at.String()))
	ok(t, lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error {
		_, err := n.Status(t.Context())
		return err
	}))
	for _, command := range []string{"status", "doctor"} {
		ok(t, lab.Until(within(t, 30*time.Second), 200*time.Millisecond, func() error {
			line, all := verdict(t, n, command)
			for _, f := range all {
				if f.ID == "relay-unreachable" && strings.HasPrefix(f.Remedy, "check this host's name servers") && !strings.Contains(f.Remedy, "firewall") && strings.Contains(line, "no name server says its address") {
					return nil
				}
			}
			return fmt.Errorf("%s: %s: %+v", command, line, all)
		}))
	}
}
