package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/resolve"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// inPod is what runs an agent as in a pod: its /etc/resolv.conf is a copy from when it began, with one name server, and the files of
// its host are mounted. The host's network manager replaces its own by one with another server.
func inPod(t *testing.T, n *lab.Node, server string) (run []string, nameserver func(string)) {
	t.Helper()
	host := filepath.Join(n.Dir, "host")
	managed := filepath.Join(host, "run/NetworkManager/resolv.conf")
	ok(t, os.MkdirAll(filepath.Dir(managed), 0o755))
	ok(t, os.MkdirAll(resolve.Mounted, 0o755)) // stays: it may be the mount point of another test
	run = resolver(t, n, server)
	run[4] = "mount --bind " + host + " " + resolve.Mounted + " && " + run[4]
	return run, func(server string) { ok(t, lab.ReplaceFile(managed, "nameserver "+server+"\n")) }
}

// byName has a node know the relay by its name alone.
func byName(t *testing.T, l *lab.Lab, n *lab.Node, r *lab.Relay) {
	t.Helper()
	c := l.Cluster
	c.Relays = nil
	for _, a := range l.Cluster.Relays {
		c.Relays = append(c.Relays, strings.Replace(a, "/ip4/"+r.Addr+"/", "/dns/relay.example.test/", 1))
	}
	ok(t, lab.ReplaceFile(n.Membership, c.YAML()))
}

// TestFailoverWithStaleResolver moves a node to another uplink and back, in a pod whose resolv.conf is a copy from when it began.
// Each uplink has a name server of its own, which the other one does not reach, and the relay by the address that it says. The
// host's network manager replaces its file.
func TestFailoverWithStaleResolver(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	far := node(t, site(t, l, "far", lab.Symmetric), "edge-2", lab.NodeOptions{})
	n := node(t, site(t, l, "near", lab.Symmetric), "edge-1", lab.NodeOptions{})
	other := site(t, l, "other", lab.Symmetric)
	ok(t, l.Wire(n.NS, "eth1", "192.168.9.2/24", other.Router, "lan9", "192.168.9.1/24"))
	dns, at, err := l.AddStranger("dns", 2)
	ok(t, err)
	const second = "5.5.5.55" // the relay's other address
	ok(t, r.Script("ip addr add "+second+"/16 dev wan0"))
	ok(t, n.Site.Router.Script("iptables -w -I FORWARD -d "+second+" -j DROP", "iptables -w -I FORWARD -d "+at.Next().String()+" -j DROP"))
	ok(t, other.Router.Script("iptables -w -I FORWARD -d "+r.Addr+" -j DROP", "iptables -w -I FORWARD -d "+at.String()+" -j DROP"))
	for server, addr := range map[string]string{at.String(): r.Addr, at.Next().String(): second} {
		_, err := dns.Start("dns-"+server, n.ToolPath(), "names", server, addr)
		ok(t, err)
	}
	start, nameserver := inPod(t, n, at.String())
	up := func(iface, via, server, metric string) []string {
		nameserver(server)
		return []string{"ip link set " + iface + " up", "ip route replace default via " + via + " dev " + iface + " metric " + metric}
	}
	startRelays(t, l)
	ok(t, far.Start())
	ready(t, far)
	byName(t, l, n, r)
	ok(t, n.WriteConfig())
	ok(t, n.Script(append(up("eth0", "192.168.1.1", at.String(), "100"), "ip link set eth1 down")...))
	startBy(t, n, start)
	ok(t, n.WaitPods(within(t, 20*time.Second)))
	from, to := pod(t, n, "from"), pod(t, far, "to")
	curlPods(t, from, to, 5*time.Second)
	for _, x := range []struct {
		what, iface, via, server, metric, left string
		most                                   float64
	}{
		{"failover", "eth1", "192.168.9.1", at.Next().String(), "200", "eth0", 3000},
		{"back", "eth0", "192.168.1.1", at.String(), "100", "eth1", 2000},
	} {
		time.Sleep(3 * time.Second) // sleep: of the session on that path
		wait := pings(t, from, to.IP4(), 9*time.Second)
		ok(t, n.Script(append([]string{"ip link set " + x.left + " down"}, up(x.iface, x.via, x.server, x.metric)...)...))
		if gap := wait(); gap > x.most {
			t.Errorf("%s: gap %.0f ms, want at most %.0f", x.what, gap, x.most)
		} else {
			t.Logf("%s: gap %.0f ms", x.what, gap)
		}
	}
}
