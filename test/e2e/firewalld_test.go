package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// firewalld starts the real thing as it comes, with a bus and a configuration of its own,
// and does what doctor says about it.
func firewalld(t *testing.T, n *lab.Node) {
	for _, p := range []string{"firewalld", "dbus-daemon"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("NOT RUN: " + p + " is not installed; nothing installs it here, since it would take over this machine's firewall")
		}
	}
	bus, dir := dbus(t, n), filepath.Join(n.Dir, "firewalld")
	ok(t, n.Script("cp -a /etc/firewalld "+dir, "rm -rf "+dir+"/zones/*.xml"))
	_, err := n.NS.Start("firewalld-"+n.Name, "env", "DBUS_SYSTEM_BUS_ADDRESS="+bus,
		"firewalld", "--nofork", "--nopid", "--system-config", dir, "--log-file", dir+".log")
	ok(t, err)
	ok(t, lab.Until(within(t, 30*time.Second), 200*time.Millisecond,
		func() error { return firewallCmd(t, n, "--state") }))
	ok(t, firewallCmd(t, n, "--permanent", "--zone=trusted", "--add-source="+lab.DefaultRange4,
		"--add-source="+lab.DefaultRange6))
	ok(t, firewallCmd(t, n, "--permanent", "--add-port=5210/udp"))
	ok(t, firewallCmd(t, n, "--reload"))
}

// dbus starts a system bus of the node's own, where everybody may do everything. It returns its address.
func dbus(t *testing.T, n *lab.Node) string {
	t.Helper()
	bus := filepath.Join(n.Dir, "bus")
	ok(t, os.WriteFile(bus+".conf", []byte(`<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=`+bus+`</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>
`), 0o600))
	_, err := n.NS.Start("bus-"+n.Name, "dbus-daemon", "--config-file="+bus+".conf", "--nofork", "--nopidfile")
	ok(t, err)
	return "unix:path=" + bus
}

func firewallCmd(t *testing.T, n *lab.Node, args ...string) error {
	cmd := append([]string{
		"env", "DBUS_SYSTEM_BUS_ADDRESS=unix:path=" + filepath.Join(n.Dir, "bus"), "firewall-cmd",
	}, args...)
	if out, err := n.Run(t.Context(), cmd...); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

// TestReversePath: IPv6 pods behind firewalld's default rules, on one node or both, loaded before the agents or later, use the LAN as IPv4
// pods do: natively, or over VXLAN where the LAN has no IPv6. That stays so when the link fails and comes back, and where each end takes
// another path.
func TestReversePath(t *testing.T) {
	tier.Long(t)
	rules := strings.NewReplacer("RANGE4", lab.DefaultRange4, "RANGE6", lab.DefaultRange6).Replace(firewalldRules)
	for _, c := range []struct {
		name        string
		ends        int
		later, ipv6 bool
	}{
		{"one end", 1, false, true}, {"both ends", 2, false, true}, {"both ends, VXLAN", 2, false, false},
		{"one end, later", 1, true, true}, {"both ends, later", 2, true, true}, {"one end, VXLAN, later", 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			beside(t)
			load := func(p *lanPair) {
				for _, n := range []*lab.Node{p.n2, p.n1}[:c.ends] {
					ok(t, n.Script(rules))
				}
			}
			p := newLANPair(t, func(p *lanPair) {
				if c.ipv6 {
					ok(t, p.n1.Script("ip addr add fd99::11/64 dev eth0 nodad"))
					ok(t, p.n2.Script("ip addr add fd99::12/64 dev eth0 nodad"))
				}
				if !c.later {
					load(p)
				}
			})
			lan := func(wait time.Duration, wanted string) {
				t.Helper()
				for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
					ok(t, lab.Until(within(t, wait), 100*time.Millisecond, func() error {
						st, err := n[0].Status(t.Context())
						if err != nil {
							return err
						}
						to, pods6 := st.Peer(n[1].Name), "native"
						if _, after, has := strings.Cut(to.Reason, "IPv6 pods: "); has {
							pods6, _, _ = strings.Cut(after, " ")
						}
						if to.Path != "native" || to.Proof != "forwarded" || pods6 != wanted {
							return fmt.Errorf("%s: %s by %q, %s; want IPv6 pods: %s", n[0].Name, to.Path, to.Proof, to.Reason, wanted)
						}
						return nil
					}))
				}
			}
			wanted := "vxlan"
			if c.ipv6 {
				wanted = "native"
			}
			curlPods(t, p.pod1, p.pod2, 10*time.Second)
			lan(15*time.Second, wanted)
			if c.later {
				load(p)
			}
			for range 15 {
				time.Sleep(time.Second) // sleep: the path stays meanwhile
				curlPods(t, p.pod1, p.pod2, time.Second)
				curlPods(t, p.pod2, p.pod1, time.Second)
				lan(time.Second, wanted)
			}
			at := port(t, p.n2)
			ok(t, p.site.Router.Script("ip link set "+at+" down"))
			time.Sleep(5 * time.Second) // sleep: longer than a path takes to fail
			ok(t, p.site.Router.Script("ip link set "+at+" up"))
			curlPods(t, p.pod1, p.pod2, 20*time.Second)
			lan(60*time.Second, wanted)
			if !c.ipv6 {
				return
			}
			ok(t, p.n2.Script("ip6tables -I FORWARD -i eth0 -j DROP")) // so that only one end leaves the native path
			curlPods(t, p.pod1, p.pod2, 5*time.Second)
			curlPods(t, p.pod2, p.pod1, 5*time.Second)
			ok(t, p.n2.Script("ip6tables -D FORWARD -i eth0 -j DROP"))
			lan(60*time.Second, wanted)
			curlPods(t, p.pod1, p.pod2, time.Second)
		})
	}
}
