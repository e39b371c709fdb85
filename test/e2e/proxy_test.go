package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// proxyPort is where tinyproxy listens on a site's router.
const proxyPort = "3128"

// worstProxyStart is the longest time from an agent's start, behind a proxy, to a pod's first curl.
const worstProxyStart = 3 * time.Second

// worstProxyCut is the longest gap, in ms, when a proxy ends a connection and another relay is there.
const worstProxyCut = 150

// siteProxy is a proxy on a site's router, the site's only way out.
type siteProxy struct {
	*lab.Process
	router  *lab.NS
	command []string
}

// onlyProxy lets nothing out of a site but what asks the proxy, tinyproxy, which allows CONNECT to port 443.
func onlyProxy(t *testing.T, l *lab.Lab, s *lab.Site, auth string) *siteProxy {
	t.Helper()
	conf := filepath.Join(l.Dir, s.Name+"-tinyproxy.conf")
	text := "User root\nGroup root\nPort " + proxyPort + "\nListen 192.168.1.1\nTimeout 600\nMaxClients 100\nConnectPort 443\nDisableViaHeader Yes\n"
	if auth != "" {
		text += "BasicAuth " + auth + "\n"
	}
	return startProxy(t, s, conf, text, "tinyproxy", "-d", "-c", conf)
}

// onlySquid is onlyProxy with Squid, where that is installed; it runs as the user proxy.
func onlySquid(t *testing.T, l *lab.Lab, s *lab.Site) *siteProxy {
	t.Helper()
	if _, err := exec.LookPath("squid"); err != nil {
		t.Skip("NOT RUN: squid is not installed")
	}
	conf := filepath.Join(l.Dir, s.Name+"-squid.conf")
	text := "http_port 192.168.1.1:" + proxyPort + `
acl tunnels port 443
http_access deny !tunnels
http_access allow CONNECT
cache deny all
access_log none
cache_log /dev/null
pid_filename none
coredump_dir /tmp
visible_hostname proxy
shutdown_lifetime 0 seconds
max_filedescriptors 1024
`
	return startProxy(t, s, conf, text, "squid", "-N", "-d", "1", "-f", conf)
}

// startProxy lets nothing out of a site and starts a proxy on its router.
func startProxy(t *testing.T, s *lab.Site, conf, text string, command ...string) *siteProxy {
	t.Helper()
	ok(t, s.Router.Script("iptables -w -I FORWARD -o wan0 -j DROP"))
	ok(t, os.WriteFile(conf, []byte(text), 0o600))
	x := &siteProxy{router: s.Router, command: command}
	x.start(t)
	return x
}

func (x *siteProxy) start(t *testing.T) {
	t.Helper()
	var err error
	x.Process, err = x.router.Start(x.command[0], x.command...)
	ok(t, err)
}

// throughProxy sets the proxy in a node's configuration.
func throughProxy(t *testing.T, n *lab.Node, credentials string) {
	t.Helper()
	n.Config.Proxy = "http://192.168.1.1:" + proxyPort
	if credentials != "" {
		n.Config.ProxyUser = filepath.Join(n.Dir, "proxy-credentials")
		ok(t, os.WriteFile(n.Config.ProxyUser, []byte(credentials+"\n"), 0o600))
	}
}

// TestOnlyProxy has one site out of which nothing leads but an HTTP proxy, with and without a password: its nodes are
// relayed soon after their start, and soon after the proxy was restarted; and leave the proxy when there is a direct way.
func TestOnlyProxy(t *testing.T) {
	tier.All(t)
	beside(t)
	for name, x := range map[string]struct {
		tail, auth, first, password string
		squid                       bool
	}{
		"tcp":          {tail: "/tcp/443"},
		"squid":        {tail: "/tcp/443", squid: true},
		"ws, password": {tail: "/tcp/443/ws", auth: "edge secret-1", first: "edge:secret-2", password: "edge:secret-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if x.squid {
				tier.Long(t)
			}
			beside(t)
			l := newLab(t)
			r := relay(t, l, "relay")
			r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443", "/ip4/0.0.0.0/tcp/443/ws")
			l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+r.Addr+x.tail+"/p2p/"+r.PeerID)
			p := &pair{lab: l}
			shut, open := site(t, l, "site-1", lab.EIM), site(t, l, "site-2", lab.EIM)
			p.n1, p.n2 = node(t, shut, "edge-1", lab.NodeOptions{}), node(t, open, "edge-2", lab.NodeOptions{})
			var proxy *siteProxy
			if x.squid {
				proxy = onlySquid(t, l, shut)
			} else {
				proxy = onlyProxy(t, l, shut, x.auth)
			}
			throughProxy(t, p.n1, x.first)
			startRelays(t, l)
			ok(t, p.n2.Start())
			ready(t, p.n2)
			p.pod2 = pod(t, p.n2, "two")
			var took []float64
			for remeasure(took, millis(worstProxyStart)) {
				if len(took) > 0 {
					ok(t, p.n1.Agent.Stop())
					forgets(p.n1)
				}
				start, clock := time.Now(), stopwatch(t)
				ok(t, p.n1.Start())
				if x.password != "" && len(took) == 0 { // until it is corrected, the wrong one is named as the cause
					p.relaySays(t, "does not accept user and password")
					first(t, p.n1, "proxy", "broken")
					ok(t, os.WriteFile(p.n1.Config.ProxyUser, []byte(x.password+"\n"), 0o600))
					ok(t, p.n1.Agent.Stop())
					start, clock = time.Now(), stopwatch(t)
					ok(t, p.n1.Start())
				}
				ready(t, p.n1)
				if p.pod1 == nil {
					p.pod1 = pod(t, p.n1, "one")
				}
				ctx := within(t, 5*time.Second)
				ok(t, lab.Until(ctx, 20*time.Millisecond, func() error {
					return tryCurl(ctx, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
				}))
				took = append(took, millis(clock()))
				t.Logf("agent's start to first curl: %d ms, of which %.0f count", time.Since(start).Milliseconds(), took[len(took)-1])
			}
			if m := median(took); m > millis(worstProxyStart) {
				t.Errorf("agent's start to first curl: %.0f ms, the median of %.0f, want at most %v", m, took, worstProxyStart)
			}
			p.viaProxy(t, "192.168.1.1:"+proxyPort)

			var b lab.Bulk
			if err := p.pod1.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", "50000000", p.pod2.IP4().String()); err != nil || !b.Match {
				t.Errorf("50 MB: %+v %v", b, err)
			}
			t.Logf("%.0f Mbit/s with checksums", b.Mbps)

			var gaps []float64
			for remeasure(gaps, worstRestart) {
				wait := pings(t, p.pod1, p.pod2.IP4(), 8*time.Second)
				proxy.Kill()
				time.Sleep(200 * time.Millisecond) // sleep: the proxy is down
				proxy.start(t)
				gaps = append(gaps, wait())
			}
			if rounds() == fullRounds { // each of them
				for _, gap := range gaps {
					held(t, []float64{gap}, worstRestart)
				}
			}
			held(t, gaps, worstRestart)

			proxy.Kill()
			p.relaySays(t, "the proxy cannot be reached")
			ok(t, shut.Router.Script("iptables -w -D FORWARD -o wan0 -j DROP"))
			proxy.start(t)
			curlPods(t, p.pod1, p.pod2, 20*time.Second)
			p.viaProxy(t, "")
			p.onPaths(t, 60*time.Second, "punched", "direct")
		})
	}
}

// relaySays waits until node 1 shows a text as the reason why a relay is not there.
func (p *pair) relaySays(t *testing.T, text string) {
	t.Helper()
	ok(t, lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error {
		st, err := p.n1.Status(t.Context())
		if err == nil && !slices.ContainsFunc(st.Relays, func(r lab.RelayStatus) bool { return strings.Contains(r.Error, text) }) {
			err = fmt.Errorf("no relay says %q: %+v", text, st.Relays)
		}
		return err
	}))
}

// viaProxy waits until node 1's connected relays are reached through the proxy, "" is directly.
func (p *pair) viaProxy(t *testing.T, proxy string) {
	t.Helper()
	ok(t, lab.Until(within(t, 60*time.Second), 100*time.Millisecond, func() error {
		st, err := p.n1.Status(t.Context())
		if err == nil && !slices.ContainsFunc(st.Relays, func(r lab.RelayStatus) bool { return r.Reserved && r.Proxy == proxy }) {
			err = fmt.Errorf("want a relay through %q: %+v", proxy, st.Relays)
		}
		return err
	}))
}

// TestProxyCuts has the site's proxy end each connection after half a minute. With two relays no ping notices it once the
// agent has learnt that: what carries nothing is renewed in the middle of its time.
func TestProxyCuts(t *testing.T) {
	tier.Long(t)
	const life = 24 * time.Second
	l := newLab(t)
	p := &pair{lab: l}
	for i := range 2 {
		r := relay(t, l, fmt.Sprintf("relay-%d", i+1))
		r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443")
		l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+r.Addr+"/tcp/443/p2p/"+r.PeerID)
	}
	shut, open := site(t, l, "site-1", lab.EIM), site(t, l, "site-2", lab.EIM)
	p.n1, p.n2 = node(t, shut, "edge-1", lab.NodeOptions{}), node(t, open, "edge-2", lab.NodeOptions{})
	ok(t, shut.Router.Script("iptables -w -I FORWARD -o wan0 -j DROP"))
	_, err := shut.Router.StartTool("proxy", "proxy", "--life", life.String(), "192.168.1.1:"+proxyPort)
	ok(t, err)
	throughProxy(t, p.n1, "")
	startRelays(t, l)
	ok(t, p.n1.Start())
	ok(t, p.n2.Start())
	ready(t, p.n1, p.n2)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	curlPods(t, p.pod1, p.pod2, 10*time.Second)
	var gaps []float64
	for range 6 {
		gaps = append(gaps, pings(t, p.pod1, p.pod2.IP4(), life)())
	}
	t.Logf("gaps in times of %s each: %.0f ms", life, gaps)
	heldAll(t, gaps[:2], worstCut)
	heldAll(t, gaps[2:], worstProxyCut)
}

// TestProxyInspects has a proxy that ends TLS in the relay's place, with a certificate of its own, and drops what is no TLS:
// status and doctor name that as the cause, immediately and each time, and the node is there as soon as its relay is exempted.
func TestProxyInspects(t *testing.T) {
	tier.All(t)
	beside(t)
	for name, x := range map[string]struct{ tail, says string }{
		"wss": {"/tls/ws", "ends TLS in the target's place"},
		"tcp": {"", "a proxy that inspects TLS drops what it does not know"},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			l := newLab(t)
			r := relay(t, l, "relay")
			r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443")
			l.Cluster.Relays = []string{"/ip4/" + r.Addr + "/tcp/443" + x.tail + "/p2p/" + r.PeerID}
			if x.tail != "" { // exempted, it is reached without a web server in front of it
				l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+r.Addr+"/tcp/443/p2p/"+r.PeerID)
			}
			shut := site(t, l, "site", lab.EIM)
			p := &pair{lab: l, n1: node(t, shut, "edge-1", lab.NodeOptions{})}
			ok(t, shut.Router.Script("iptables -w -I FORWARD -o wan0 -j DROP"))
			inspecting, err := shut.Router.StartTool("proxy", "proxy", "--inspect", "192.168.1.1:"+proxyPort)
			ok(t, err)
			throughProxy(t, p.n1, "")
			startRelays(t, l)
			ok(t, p.n1.Start())
			p.relaySays(t, x.says)
			out, _, err := p.n1.AgentCommand(within(t, 10*time.Second), "doctor", "--runtime-dir", p.n1.Config.RuntimeDir)
			if err == nil {
				t.Errorf("doctor finds nothing wrong:\n%s", out)
			}
			contains(t, out, x.says, "exempted from inspection")
			inspecting.Kill()
			_, err = shut.Router.StartTool("proxy", "proxy", "192.168.1.1:"+proxyPort)
			ok(t, err)
			start := time.Now()
			ok(t, p.n1.WaitReserved(within(t, 15*time.Second)))
			t.Logf("reserved %d ms after the proxy no longer inspects", time.Since(start).Milliseconds())
		})
	}
}
