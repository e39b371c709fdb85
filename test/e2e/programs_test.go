package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// wireGuard is wg-quick, and the implementation that it starts where the kernel has none.
type wireGuard struct{ conf, run string }

func newWireGuard(t *testing.T) (path string) {
	t.Helper()
	for _, p := range []string{"wg", "wg-quick"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("NOT RUN: ", p, " is not installed (apt-get install wireguard-tools)")
		}
	}
	root, err := repo.Root()
	ok(t, err)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/wireguard-go", "golang.zx2c4.com/wireguard")
	build.Dir, build.Env = filepath.Join(root, "test", "bench", "wireguard"), append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build wireguard-go: %v\n%s", err, out)
	}
	return dir
}

// quick runs wg-quick in the node's namespaces, with a place of its own for the sockets of wireguard-go.
func (w wireGuard) quick(n *lab.NS, path, verb string) error {
	return n.Script("mkdir -p "+w.run, "unshare -m sh -ec 'mkdir -p /var/run/wireguard; mount --bind "+w.run+" /var/run/wireguard; PATH="+path+
		":$PATH WG_QUICK_USERSPACE_IMPLEMENTATION=wireguard-go LOG_LEVEL=error wg-quick "+verb+" "+w.conf+" </dev/null >>"+w.run+".log 2>&1'")
}

// TestBesideWGQuick: the real wg-quick, with wireguard-go, takes all traffic of a node, before the agent's start and after it. Pods take
// the tunnel, the LAN stays, everything else leaves through the VPN, the agent's own connections, too, and nothing for pods leaves in
// clear.
func TestBesideWGQuick(t *testing.T) {
	tier.Long(t)
	beside(t)
	path := newWireGuard(t)
	l := newLab(t)
	relay(t, l, "relay")
	p := &pair{lab: l}
	p.n1, p.n2 = node(t, site(t, l, "site-1", lab.EIM), "edge-1", lab.NodeOptions{}), node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
	vpn, at, err := l.AddStranger("vpn", 1)
	ok(t, err)
	keys := func(n *lab.NS) (private, public string) {
		out, err := n.Run(t.Context(), "sh", "-c", "k=$(wg genkey); echo $k; echo $k | wg pubkey")
		ok(t, err)
		f := strings.Fields(out)
		return f[0], f[1]
	}
	key1, pub1 := keys(p.n1.NS)
	key2, pub2 := keys(vpn)
	tag := l.Tag[2:]
	here := wireGuard{filepath.Join(p.n1.Dir, "wg"+tag+".conf"), filepath.Join(p.n1.Dir, "wireguard")}
	there := wireGuard{filepath.Join(l.Dir, "ws"+tag+".conf"), filepath.Join(l.Dir, "wireguard")}
	ok(t, os.WriteFile(here.conf, fmt.Appendf(nil, "[Interface]\nPrivateKey = %s\nAddress = 10.9.9.2/32\n[Peer]\nPublicKey = %s\nEndpoint = %s:51820\nAllowedIPs = 0.0.0.0/0\nPersistentKeepalive = 5\n", key1, pub2, at), 0o600))
	ok(t, os.WriteFile(there.conf, fmt.Appendf(nil, "[Interface]\nPrivateKey = %s\nAddress = 10.9.9.1/24\nListenPort = 51820\n[Peer]\nPublicKey = %s\nAllowedIPs = 10.9.9.2/32\n", key2, pub1), 0o600))
	ok(t, there.quick(vpn, path, "up"))
	t.Cleanup(func() { _, _ = there.quick(vpn, path, "down"), here.quick(p.n1.NS, path, "down") })
	ok(t, vpn.Script("sysctl -qw net.ipv4.ip_forward=1", "iptables -w -t nat -A POSTROUTING -s 10.9.9.0/24 -o wan0 -j MASQUERADE"))

	// beside wants everything to go where it should, with the VPN or without.
	besideVPN := func(on bool) {
		t.Helper()
		since := stopwatch(t)
		fair.Eventually(t, 30*time.Second, "pods are reached and connections take the VPN", func() error {
			if err := tryCurl(t.Context(), p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), 2*time.Second); err != nil {
				return err
			}
			return tryCurl(t.Context(), p.pod2.NS, p.pod1, p.pod1.IP4(), p.pod2.IP4(), 2*time.Second)
		})
		reached := since()
		from := map[bool]string{true: at.String(), false: p.n1.Site.WAN.String()}[on]
		fair.Eventually(t, 30*time.Second, "the relay is connected where all else leaves", func() error {
			out, err := l.Relays[0].Run(t.Context(), "ss", "-Htn", "state", "established", "sport = :4501")
			if err == nil && !strings.Contains(out, from+":") {
				err = fmt.Errorf("not from %s, but from:\n%s", from, out)
			}
			return err
		})
		t.Logf("VPN %t: pods are reached after %.1f s, the relay is connected after %.1f s", on, reached.Seconds(), since().Seconds())
		ok(t, p.n1.NS.Ping(t.Context(), "192.168.1.1", 2*time.Second)) // the LAN
		out, err := p.n1.Run(t.Context(), "ip", "route", "get", lab.InternetAddr)
		ok(t, err)
		if strings.Contains(out, "dev wg"+tag) != on {
			t.Errorf("VPN %t, and the route is %s", on, out)
		}
		rules, err := p.n1.Run(t.Context(), "ip", "rule")
		ok(t, err)
		if on && strings.Index(rules, "suppress_prefixlength 0") > strings.Index(rules, "not from all fwmark 0xca6c") {
			t.Errorf("wg-quick's rules changed places:\n%s", rules)
		}
	}
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	strays, err := l.Sniff()
	ok(t, err)
	besideVPN(false)
	for range 2 { // after the agent
		ok(t, here.quick(p.n1.NS, path, "up"))
		besideVPN(true)
		ok(t, here.quick(p.n1.NS, path, "down"))
		besideVPN(false)
	}
	ok(t, p.n1.Agent.Stop()) // before it
	ok(t, here.quick(p.n1.NS, path, "up"))
	ok(t, p.n1.Start())
	ready(t, p.n1)
	besideVPN(true)
	all, err := strays()
	ok(t, err)
	if len(all) > 0 {
		t.Errorf("left in clear: %q", all)
	}
}

// logRepairs logs what a node's agent has taken back from other programs.
func logRepairs(t *testing.T, n *lab.Node) {
	t.Helper()
	for line := range strings.Lines(n.Agent.Tail(1000)) {
		if strings.Contains(line, "kernel state repaired") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// TestBesideNetworkd: the real systemd-networkd manages every interface that it finds, with DHCP, and removes foreign rules and routes.
// Pods are reached all the same, without `edgemesh-agent install`'s file, which keeps it off.
func TestBesideNetworkd(t *testing.T) {
	tier.Long(t)
	beside(t)
	const networkd = "/lib/systemd/systemd-networkd"
	if _, err := os.Stat(networkd); err != nil {
		t.Skip("NOT RUN: ", networkd, " is not installed (apt-get install systemd)")
	}
	p := newPair(t, lab.EIM, lab.EIM)
	run, etc := filepath.Join(p.n1.Dir, "networkd"), filepath.Join(p.n1.Dir, "network")
	start := func() *lab.Process {
		d, err := p.n1.NS.Start("networkd", "unshare", "-m", "sh", "-ec", fmt.Sprintf(`
mkdir -p %[1]s/links %[1]s/leases %[1]s/lldp %[2]s /run/systemd/netif /etc/systemd/network
chown -R systemd-network %[1]s
mount --bind %[1]s /run/systemd/netif
mount --bind %[2]s /etc/systemd/network
mount -o remount,ro /sys
exec env SYSTEMD_LOG_LEVEL=info %[3]s`, run, etc, networkd))
		ok(t, err)
		time.Sleep(3 * time.Second) // sleep: it ends, if it cannot run
		if !d.Running() {
			t.Skip("NOT RUN: systemd-networkd does not run in a namespace here: ", d.Tail(5))
		}
		return d
	}
	ok(t, os.MkdirAll(etc, 0o755))
	ok(t, os.WriteFile(filepath.Join(etc, "50-all.network"), []byte("[Match]\nName=edgemesh-* vethem*\n[Network]\nDHCP=yes\nLinkLocalAddressing=ipv4\n"), 0o644))                                             //nolint:gosec // not secret
	ok(t, os.WriteFile(filepath.Join(etc, "40-uplink.network"), fmt.Appendf(nil, "[Match]\nName=%s\n[Network]\nAddress=%s/24\nGateway=192.168.1.1\nKeepConfiguration=yes\n", p.n1.Uplink, p.n1.Addr), 0o644)) //nolint:gosec // not secret
	strays, err := p.lab.Sniff()
	ok(t, err)
	for range 2 {
		flow := lasting(t, p.pod1.NS, "icmp", p.pod2.IP4(), "--interval", "50ms")
		d := start()
		fair.Eventually(t, 20*time.Second, "pods are reached beside networkd", func() error {
			return errors.Join(tryCurl(t.Context(), p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), 2*time.Second),
				tryCurl(t.Context(), p.pod2.NS, p.pod1, p.pod1.IP4(), p.pod2.IP4(), 2*time.Second))
		})
		time.Sleep(10 * time.Second) // sleep: a late gap would show
		g, err := flow()
		ok(t, err)
		held(t, []float64{g.FairMs}, 1000)
		ok(t, p.n1.NS.Ping(t.Context(), pod(t, p.n1, fmt.Sprintf("later-%d", d.PID())).IP4().String(), 2*time.Second))
		t.Logf("networkd: %s", d.Tail(8))
		ok(t, d.Stop())
	}
	logRepairs(t, p.n1)
	contains(t, p.n1.Agent.Tail(1000), "part=interfaces change=\"delete ") // else it has left all of them alone
	all, err := strays()
	ok(t, err)
	if len(all) > 0 {
		t.Errorf("left in clear: %q", all)
	}
}

// manager is a program that configures every interface it finds, pods' among them, run without what `edgemesh-agent install` or
// docs/compatibility.md adds to keep it off.
type manager struct {
	program string
	name    string            // of its directories in /run and /var/lib
	files   map[string]string // of its configuration, by name below DIR; UPLINK is the interface it may have
	script  string            // starts it, in a mount namespace of its own, with DIR for its directory
	found   []string          // it says, when it has found them
}

// besideManager wants pods reached, those made before the program and after it, a running flow without a gap, and no address of the
// program's on a pod's interface.
func besideManager(t *testing.T, m manager) {
	beside(t)
	for _, p := range []string{m.program, "dbus-daemon"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("NOT RUN: ", p, " is not installed; nothing installs it here, since it would take over this machine's interfaces")
		}
	}
	p := newPair(t, lab.EIM, lab.EIM)
	later := pod(t, p.n1, "later")
	dir := filepath.Join(p.n1.Dir, m.program)
	ok(t, os.MkdirAll(dir, 0o700))
	for name, text := range m.files {
		ok(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "UPLINK", p.n1.Uplink)), 0o600))
	}
	bus := dbus(t, p.n1)
	strays, err := p.lab.Sniff()
	ok(t, err)
	flow := lasting(t, p.pod1.NS, "icmp", p.pod2.IP4(), "--interval", "50ms")
	d, err := p.n1.NS.Start(m.program, "unshare", "-m", "sh", "-ec", fmt.Sprintf(`mount -o remount,ro /sys
cp /etc/resolv.conf %[1]s/resolv.conf
mount --bind %[1]s/resolv.conf /etc/resolv.conf # they write it
for d in run var/lib; do
	mkdir -p %[1]s/$d /$d/%[3]s
	mount --bind %[1]s/$d /$d/%[3]s
done
export DBUS_SYSTEM_BUS_ADDRESS=%[2]s
`+strings.ReplaceAll(m.script, "DIR", dir), dir, bus, m.name))
	ok(t, err)
	time.Sleep(20 * time.Second) // sleep: it ends, if it cannot run
	if !d.Running() {
		t.Skip("NOT RUN: ", m.program, " does not run in a namespace here: ", d.Tail(5))
	}
	g, err := flow()
	ok(t, err)
	held(t, []float64{g.FairMs}, 1000)
	curlPods(t, p.pod1, p.pod2, 2*time.Second)
	curlPods(t, p.pod2, p.pod1, 2*time.Second)
	curlPods(t, p.pod2, later, 2*time.Second)
	ok(t, p.n1.NS.Ping(t.Context(), pod(t, p.n1, "new").IP4().String(), 2*time.Second))
	contains(t, d.Tail(1000), m.found...)
	fair.Eventually(t, 20*time.Second, "pods' interfaces have no address of the program's", func() error {
		links, err := p.n1.Run(t.Context(), "ip", "-br", "addr", "show", "type", "veth")
		for line := range strings.Lines(links) {
			if f := strings.Fields(line); strings.HasPrefix(line, "vethem") && len(f) > 2 {
				err = errors.Join(err, errors.New(line))
			}
		}
		return err
	})
	logRepairs(t, p.n1)
	all, err := strays()
	ok(t, err)
	if len(all) > 0 {
		t.Errorf("left in clear: %q", all)
	}
}

// TestBesideNetworkManager has a profile for the pods' interfaces, which udev's rules do not keep from it here. It takes them for
// another program's.
func TestBesideNetworkManager(t *testing.T) {
	tier.Long(t)
	besideManager(t, manager{
		program: "NetworkManager",
		name:    "NetworkManager",
		files: map[string]string{
			"etc/NetworkManager.conf": "[main]\nplugins=keyfile\ndhcp=internal\n[device-all]\nmatch-device=interface-name:vethem*,interface-name:edgemesh-*\nmanaged=1\n" +
				"[keyfile]\nunmanaged-devices=interface-name:UPLINK\n",
			"etc/system-connections/all.nmconnection": "[connection]\nid=all\ntype=ethernet\nmulti-connect=3\n[match]\ninterface-name=vethem*;\n[ipv4]\nmethod=link-local\n[ipv6]\nmethod=auto\n",
		},
		script: `mount --bind DIR/etc /etc/NetworkManager
exec NetworkManager --debug --log-level=INFO`,
		found: []string{"(edgemesh-br)", "connection-assumed"},
	})
}

// TestBesideConnman: connman sets down every Ethernet interface, bridge and TUN that it finds, and turns IPv6 on at pods' interfaces.
func TestBesideConnman(t *testing.T) {
	tier.Long(t)
	besideManager(t, manager{
		program: "connmand",
		name:    "connman",
		files:   map[string]string{"main.conf": "[General]\nNetworkInterfaceBlacklist=UPLINK\nAllowHostnameUpdates=false\nEnableOnlineCheck=false\n"},
		script:  `exec connmand --nodaemon --nodnsproxy --config=DIR/main.conf`,
		found:   []string{"Adding interface vethem"},
	})
}

// TestBesideDhcpcd: dhcpcd gives every interface that it finds an address and a default route.
func TestBesideDhcpcd(t *testing.T) {
	tier.Long(t)
	besideManager(t, manager{
		program: "dhcpcd",
		name:    "dhcpcd",
		files:   map[string]string{"dhcpcd.conf": "denyinterfaces UPLINK\nnodhcp6\nstatic ip_address=169.254.7.7/16\nstatic routers=169.254.7.1\n"},
		script:  `exec dhcpcd --nobackground --debug --noarp --config DIR/dhcpcd.conf`,
		found:   []string{"edgemesh-tun: adding IP address 169.254.7.7", "adding default route via 169.254.7.1"},
	})
}
