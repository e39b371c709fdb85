package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestCaptivePortal: a site's router lets nobody out, and answers web requests with a redirect to its own page, for names with its own
// address, too. doctor and netcheck name the page's host, as the one cause, and no longer once a user has logged in.
func TestCaptivePortal(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	s := site(t, l, "site-1", lab.EIM)
	n := node(t, s, "edge-1", lab.NodeOptions{})
	router, err := ns.GetNS("/run/netns/" + s.Router.Full)
	ok(t, err)
	defer router.Close()
	var listener net.Listener
	ok(t, router.Do(func(ns.NetNS) (err error) { listener, err = net.Listen("tcp", "192.168.1.1:8080"); return err }))
	web := &http.Server{Handler: http.RedirectHandler("https://login.hotel.example/?from=here", http.StatusFound), ReadHeaderTimeout: time.Minute}
	go func() { _ = web.Serve(listener) }()
	t.Cleanup(func() { ok(t, web.Close()) })
	rules := []string{"iptables -w -t nat %[1]s PREROUTING -i lan0 -p tcp --dport 80 -j REDIRECT --to-ports 8080", "iptables -w %[1]s FORWARD -i lan0 -j REJECT"}
	portal := func(how string) {
		for _, rule := range rules {
			ok(t, s.Router.Script(fmt.Sprintf(rule, how)))
		}
		ok(t, s.Router.Script("conntrack -F"))
	}
	hijacked, err := s.Router.Start("dns", n.ToolPath(), "names", "192.168.1.1", "192.168.1.1")
	ok(t, err)
	start := resolver(t, n, "192.168.1.1")
	startRelays(t, l)
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("by name %t", named), func(t *testing.T) {
			if portal("-I"); named {
				byName(t, l, n, r)
			}
			ok(t, n.WriteConfig())
			startBy(t, n, start)
			ok(t, n.WaitPods(within(t, 20*time.Second)))
			fair.Eventually(t, 20*time.Second, "doctor names the page", func() error {
				if line, all := verdict(t, n, "doctor"); !strings.Contains(line, "captive portal") || !strings.Contains(line, "login.hotel.example") {
					return fmt.Errorf("doctor says %q: %+v", line, all)
				}
				return nil
			})
			out, err := n.NS.Run(t.Context(), append(start, n.AgentPath(), "netcheck", "--config", n.ConfigFile())...)
			if !errors.As(err, new(*lab.ExitError)) || !strings.Contains(out, "login.hotel.example") {
				t.Errorf("netcheck: %v: %s", err, out)
			}
			if portal("-D"); named {
				ok(t, hijacked.Stop())
				_, err = s.Router.Start("dns-2", n.ToolPath(), "names", "192.168.1.1", r.Addr)
				ok(t, err)
			}
			fair.Eventually(t, 90*time.Second, "nothing is said once the site is let out", func() error {
				if line, all := verdict(t, n, "doctor"); strings.Contains(line, "portal") || strings.HasPrefix(line, "TROUBLE") {
					return fmt.Errorf("doctor says %q: %+v", line, all)
				}
				return nil
			})
			ok(t, n.Agent.Stop())
		})
	}
}
