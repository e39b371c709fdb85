package p2p

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// world is a small internet in network namespaces: a WAN (5.5.0.0/16) with
// relays and sites. Its names begin with a tag of its own, so that several can exist
// side by side; cleanup removes exactly those, also after a SIGKILL.
type world struct {
	t    *testing.T
	tag  string
	made []string
	port int
	wan  string // the first two bytes of the WAN's addresses
}

// natKinds of site. none: the host stands on the WAN itself. keep: a NAT that
// keeps ports and drops what nobody asked for. symmetric: a random port for
// every destination. open: keep, with the agent's port forwarded. reject: keep,
// but the router answers what nobody asked for with RST and ICMP. sequential:
// the next port for every destination. block: as symmetric, out of 128 ports for
// UDP; the relay sees the agent's port outside of them, as a peer that dials there would
// else be let in, by chance, once in 128 times.
const (
	natNone       = "none"
	natKeep       = "keep"
	natSymmetric  = "symmetric"
	natOpen       = "open"
	natReject     = "reject"
	natSequential = "sequential"
	natBlock      = "block"

	agentPort = 4001
)

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldAt(t, "5.5")
}

// A world is gone a moment after the test that made it was killed.
func TestKilledWorldIsRemoved(t *testing.T) {
	w := newWorld(t)
	left := func() error {
		out, err := exec.Command("ip", "netns", "list").Output()
		if err == nil && strings.Contains(string(out), w.tag) {
			err = errors.New(string(out))
		}
		return err
	}
	if left() == nil {
		t.Fatal("no world")
	}
	w.watch()() // as if the process had died: its end of the pipe is closed
	if err := left(); err != nil {
		t.Errorf("left behind: %v", err)
	}
	w.made = nil
}

// newWorldAt makes a world whose WAN is wan.0.0/16.
func newWorldAt(t *testing.T, wan string) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root")
	}
	w := &world{t: t, wan: wan, tag: "p2p" + rand.Text()[:8] + "-"}
	watched := w.watch()
	t.Cleanup(func() {
		for _, ns := range w.made {
			if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
				t.Errorf("remove namespace %s: %v: %s", ns, err, out)
			}
		}
		watched()
	})
	w.netns("wan")
	w.in("wan", "ip link add br0 type bridge", "ip link set br0 up")
	w.onWAN("relay", w.relayIP())
	return w
}

// watch starts a process that removes the world when this one is killed; what it
// returns ends it.
func (w *world) watch() (end func()) {
	w.t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "P2P_TEST_ROLE="+watchRole, "P2P_TEST_WORLD="+w.tag)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives a Ctrl-C
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return func() {
		_ = in.Close()
		if err := c.Wait(); err != nil {
			w.t.Error(err)
		}
	}
}

const watchRole = "watch"

// serveWatch removes the namespaces of the world with that tag once its test has ended
// or died, which closes standard input.
func serveWatch(tag string) error {
	_, _ = io.Copy(io.Discard, os.Stdin)
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(out)) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, tag) {
			errs = append(errs, exec.Command("ip", "netns", "del", name).Run())
		}
	}
	return errors.Join(errs...)
}

// private is the WAN's range where that is a private one (wanCIDRs).
func (w *world) private() []string {
	if w.wan == "5.5" {
		return nil
	}
	return []string{w.wan + ".0.0/16"}
}

func (w *world) relayIP() string { return w.wan + ".5.5" }

func (w *world) ns(name string) string { return w.tag + name }

func (w *world) netns(name string) {
	w.t.Helper()
	w.run("ip netns add " + w.ns(name))
	w.made = append(w.made, w.ns(name))
	w.in(name, "ip link set lo up")
}

func (w *world) run(cmd string) {
	w.t.Helper()
	args := strings.Fields(cmd)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}

// sequentialNAT are the rules of a router that counts.
func sequentialNAT(wan string) string {
	const ports = 2000
	var m strings.Builder
	for i := range ports {
		fmt.Fprintf(&m, "%d : %d, ", i, 30000+i)
	}
	return fmt.Sprintf(`table ip sequential {
		chain post {
			type nat hook postrouting priority 100
			oifname "wan0" meta l4proto { tcp, udp } snat to %s:numgen inc mod %d map { %s }
			oifname "wan0" masquerade
		}
	}`, wan, ports, strings.TrimSuffix(m.String(), ", "))
}

// load gives rules to nft inside a namespace.
func (w *world) load(name, rules string) {
	w.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", w.ns(name), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("nft in %s: %v: %s", name, err, out)
	}
}

// in runs commands inside a namespace.
func (w *world) in(name string, cmds ...string) {
	w.t.Helper()
	for _, c := range cmds {
		w.run("ip netns exec " + w.ns(name) + " " + c)
	}
}

// onWAN makes a namespace with interface wan0 and an address on the WAN.
func (w *world) onWAN(name, ip string) {
	w.t.Helper()
	w.netns(name)
	w.port++
	peer := fmt.Sprintf("p%d", w.port)
	w.run(fmt.Sprintf("ip link add wan0 netns %s type veth peer name %s netns %s", w.ns(name), peer, w.ns("wan")))
	w.in("wan", "ip link set "+peer+" master br0 up")
	w.in(name, "ip addr add "+ip+"/16 dev wan0", "ip link set wan0 up")
}

// site makes router nX with WAN address 5.5.X.1 and hosts on its LAN, which is
// 192.168.1.0/24 at every site; without NAT the one host hX is on the WAN.
func (w *world) site(x int, kind string, hosts int) {
	w.t.Helper()
	wan := fmt.Sprintf("%s.%d.1", w.wan, x)
	if kind == natNone {
		w.onWAN(w.host(x, 1), wan)
		return
	}
	router := fmt.Sprintf("n%d", x)
	w.onWAN(router, wan)
	w.in(router, "ip link add lan0 type bridge", "ip addr add 192.168.1.1/24 dev lan0", "ip link set lan0 up",
		"sysctl -qw net.ipv4.ip_forward=1", "iptables -P FORWARD DROP",
		"iptables -A FORWARD ! -i wan0 -j ACCEPT",
		"iptables -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
	if kind != natReject {
		w.in(router, "iptables -A INPUT -i wan0 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
			"iptables -A INPUT -i wan0 -j DROP")
	}
	masquerade := "iptables -t nat -A POSTROUTING -o wan0 -j MASQUERADE"
	if kind == natBlock {
		w.in(router, fmt.Sprintf("iptables -t nat -A POSTROUTING -o wan0 -d %s -p udp --sport %d -j MASQUERADE --to-ports 40200", w.relayIP(), agentPort),
			"iptables -t nat -A POSTROUTING -o wan0 -p udp -j MASQUERADE --to-ports 40000-40127 --random-fully")
	}
	if kind == natSymmetric || kind == natBlock {
		masquerade += " --random-fully"
	}
	if kind == natSequential {
		w.load(router, sequentialNAT(wan))
	} else {
		w.in(router, masquerade)
	}
	for h := 1; h <= hosts; h++ {
		name, ip := w.host(x, h), fmt.Sprintf("192.168.1.%d", 9+h)
		w.netns(name)
		w.run(fmt.Sprintf("ip link add l%d netns %s type veth peer name eth0 netns %s", h, w.ns(router), w.ns(name)))
		w.in(router, fmt.Sprintf("ip link set l%d master lan0 up", h))
		w.in(name, "ip addr add "+ip+"/24 dev eth0", "ip link set eth0 up", "ip route add default via 192.168.1.1")
		if kind == natOpen {
			for _, p := range []string{"tcp", "udp"} {
				w.in(router, fmt.Sprintf("iptables -t nat -A PREROUTING -i wan0 -p %s --dport %d -j DNAT --to %s:%d", p, agentPort, ip, agentPort))
			}
			w.in(router, "iptables -A FORWARD -i wan0 -d "+ip+" -j ACCEPT")
		}
	}
}

func (w *world) host(x, h int) string { return fmt.Sprintf("h%d%c", x, 'a'+h-1) }
