package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nstest"
)

// hideBridges has the calling thread, and what it starts, see a host without br_netfilter. The thread must end with its goroutine.
func hideBridges() error {
	return errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", "/proc/sys/net/bridge", "tmpfs", 0, ""))
}

// configure has sysctl.d set one of br_netfilter's switches, for this thread.
func configure() error {
	return errors.Join(unix.Mount("none", "/etc/sysctl.d", "tmpfs", 0, ""),
		os.WriteFile("/etc/sysctl.d/k8s.conf", []byte("net.bridge.bridge-nf-call-ip6tables = 1\n"), 0o600))
}

func showBridges() error { return unix.Unmount("/proc/sys/net/bridge", 0) }

// onThread runs f on a thread of its own, in the test's network namespace.
func onThread(ns nstest.Namespace, f func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		if err := ns.Set(); err != nil {
			failed <- err
			return
		}
		failed <- f()
	}()
	return <-failed
}

// TestPodsOfOneNode: a Service whose endpoint is on the client's own node answers, and what drops between two pods of a node does,
// whatever net.bridge.bridge-nf-call-* say; another program's bridge stays as it is.
func TestPodsOfOneNode(t *testing.T) {
	t.Parallel()
	for _, global := range []string{"0", "1"} {
		t.Run("bridge-nf-call "+global, func(t *testing.T) {
			set := fmt.Sprintf("sysctl -qw net.bridge.bridge-nf-call-iptables=%[1]s\nsysctl -qw net.bridge.bridge-nf-call-ip6tables=%[1]s", global)
			l := newLab(t, set+"\nip link add other type bridge")
			wantUnchanged(t, l.host, dual())
			filtered(t, l)
			wantContains(t, "another's bridge", run(t, "ip -d link show other"), "nf_call_iptables 0", "nf_call_ip6tables 0")
			for _, key := range []string{"iptables", "ip6tables"} {
				if v, err := sysctl.Read("net/bridge/bridge-nf-call-" + key); v != global || err != nil {
					t.Errorf("bridge-nf-call-%s is %s, was %s: %v", key, v, global, err)
				}
			}
			run(t, "ip link set edgemesh-br type bridge nf_call_ip6tables 0") // others undo it
			if done := mustSet(t, l.host, dual()); !slices.Contains(done, "have br_netfilter filter edgemesh-br") {
				t.Errorf("repaired: %q", done)
			}
			wantUnchanged(t, l.host, dual())
		})
	}
}

// TestRoutedPods: the same without br_netfilter, where the host forwards between its pods. Pods that reached each other over the bridge
// before continue, no redirect has them try again without the host, and once the module is loaded the bridge forwards.
func TestRoutedPods(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // and never unlocked: the thread ends
	runtime.LockOSThread() // and never unlocked: the thread ends
	l := newLab(t, "sysctl -qw net.bridge.bridge-nf-call-iptables=0\nsysctl -qw net.bridge.bridge-nf-call-ip6tables=0")
	for ifc, pod := range map[string]string{"vethA": podA4 + "," + podA6, "vethB": podB4 + "," + podB6} {
		setAlias(t, ifc, conf.PodAlias+pod+" eth0 0123456789ab edgemesh")
		run(t, "sysctl -qw net.ipv6.conf."+ifc+".disable_ipv6=1")
	}
	isolated := func() int { return strings.Count(run(t, "bridge -d link show"), "isolated on") }
	ping := func(options string) {
		t.Helper()
		l.in(l.podA, func() { run(t, "ping "+options+" "+podB4+"\nping "+options+" "+podB6) })
	}
	wantUnchanged(t, l.host, dual())
	ping("-c1 -W2")
	if err := hideBridges(); err != nil {
		t.Fatal(err)
	}
	run(t, "ip link set edgemesh-br type bridge nf_call_iptables 0 nf_call_ip6tables 0")
	mustSet(t, l.host, dual())
	wantUnchanged(t, l.host, dual())
	if n := isolated(); n != 2 {
		t.Errorf("%d ports are isolated", n)
	}
	wantContains(t, "answers", run(t, "ip -6 neigh show proxy"), podA6, podB6)
	if f := wordsOf(l.host.InTheWay(dual()), "bridge-filter"); !strings.Contains(f, "this host forwards between its own pods") {
		t.Errorf("finding: %q", f)
	}
	ping("-c1 -W2") // known by a MAC that is out of reach now
	filtered(t, l)
	ping("-c3 -i.2 -W2") // more than one packet: a redirect would have come
	l.in(l.podA, func() {
		for _, a := range []string{podB4, podB6} {
			wantContains(t, "the pod's neighbour", run(t, "ip neigh show "+a), conf.BridgeMAC(BridgeName).String())
		}
	})
	if err := showBridges(); err != nil {
		t.Fatal(err)
	}
	mustSet(t, l.host, dual())
	wantUnchanged(t, l.host, dual())
	if n, left := isolated(), run(t, "ip -6 neigh show proxy"); n != 0 || left != "" {
		t.Errorf("with br_netfilter %d ports are isolated, answers for %q", n, left)
	}
	ping("-c1 -W2")
	filtered(t, l)
}

// TestRoutedIPv6Alone: the same in a cluster without IPv4, in both directions; and where the host has IPv6 off.
func TestRoutedIPv6Alone(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // and never unlocked: the thread ends
	l := newLab(t, "sysctl -qw net.bridge.bridge-nf-call-iptables=0\nsysctl -qw net.bridge.bridge-nf-call-ip6tables=0")
	for ifc, pod := range map[string]string{"vethA": podA4 + "," + podA6, "vethB": podB4 + "," + podB6} {
		setAlias(t, ifc, conf.PodAlias+pod+" eth0 0123456789ab edgemesh")
		run(t, "sysctl -qw net.ipv6.conf."+ifc+".disable_ipv6=1")
	}
	if err := hideBridges(); err != nil {
		t.Fatal(err)
	}
	run(t, "ip link set edgemesh-br type bridge nf_call_iptables 0 nf_call_ip6tables 0")
	alone := dual()
	alone.Blocks, alone.ClusterCIDRs = mesh.OfVersion(alone.Blocks, true), mesh.OfVersion(alone.ClusterCIDRs, true)
	isolated := func(want int) {
		t.Helper()
		if n := strings.Count(run(t, "bridge -d link show"), "isolated on"); n != want {
			t.Errorf("%d ports are isolated, want %d", n, want)
		}
	}
	mustSet(t, l.host, alone)
	wantUnchanged(t, l.host, alone)
	isolated(2)
	if !BridgeFiltered() {
		t.Error("nobody knows that rules see the pods' packets")
	}
	l.in(l.podA, func() { run(t, "ping -c1 -W2 "+podB6) })
	if err := showBridges(); err != nil {
		t.Fatal(err)
	}
	mustSet(t, l.host, alone)
	wantUnchanged(t, l.host, alone)
	isolated(0)
	l.in(l.podA, func() { run(t, "ping -c1 -W2 "+podB6) })

	if err := hideBridges(); err != nil {
		t.Fatal(err)
	}
	run(t, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
	mustSet(t, l.host, dual())
	wantUnchanged(t, l.host, dual())
	isolated(2)
	l.in(l.podA, func() { run(t, "ping -c1 -W2 "+podB4) })
}

// filtered wants a Service whose endpoint is on the client's own node answer, and rules between two pods hold.
func filtered(t *testing.T, l *lab) {
	t.Helper()
	for name, v := range versions("nft") {
		service, answer := "10.96.0.10", "answer over "+name
		if name == "IPv6" {
			service = "fd01:96::10"
		}
		client, server := l.listen(l.podA, v.podA, 0), l.listen(l.podB, v.podB, serverPort)
		translate, deny := fmt.Sprintf("PREROUTING -p udp -d %s --dport 53 -j DNAT --to-destination %s", service, at(v.podB, serverPort)),
			fmt.Sprintf("FORWARD -s %s -d %s -p udp --dport 7 -j DROP", v.podA, v.podB)
		run(t, v.iptables+" -t nat -I "+translate)
		if err := send(client, "to the Service", service, 53); err != nil {
			t.Fatal(err)
		}
		from := l.receive(server, "to the Service")
		if err := send(server, answer, from.Addr().String(), int(from.Port())); err != nil {
			t.Fatal(err)
		}
		if src := l.receive(client, answer); src != netip.AddrPortFrom(netip.MustParseAddr(service), 53) {
			t.Errorf("%s: the Service's answer comes from %s", name, src)
		}
		run(t, v.iptables+" -I "+deny)
		closed, open := l.listen(l.podB, v.podB, 7), l.listen(l.podB, v.podB, 8)
		for port, text := range map[int]string{7: "dropped", 8: "passes"} {
			if err := send(client, text, v.podB, port); err != nil {
				t.Fatal(err)
			}
		}
		l.receive(open, "passes")
		time.Sleep(20 * time.Millisecond) // sleep: what was dropped would have come
		l.nothing(closed, name+": a rule drops it")
		run(t, v.iptables+" -t nat -D "+translate+"\n"+v.iptables+" -D "+deny)
		for _, c := range []*net.UDPConn{client, server, closed, open} {
			c.Close()
		}
	}
}

// TestBridgeFilterMissing: without br_netfilter there is a finding with its remedy, Set succeeds, and once it is loaded the finding ends.
func TestBridgeFilterMissing(t *testing.T) {
	ns := enter(t)
	openTUN(t)
	h := newHost(t)
	missing := func() bool {
		return slices.ContainsFunc(h.InTheWay(dual()), func(f findings.Finding) bool {
			return f.ID == "bridge-filter" && f.Severity == findings.Note && strings.Contains(f.Text, "modprobe br_netfilter")
		})
	}
	err := onThread(ns, func() error {
		if err := hideBridges(); err != nil {
			return err
		}
		if _, err := h.Set(context.Background(), dual()); err != nil {
			return err
		}
		if !missing() {
			return errors.New("no finding: " + wordsOf(h.InTheWay(dual()), "bridge-filter"))
		}
		if err := showBridges(); err != nil {
			return err
		}
		if missing() {
			return errors.New("a finding with the module loaded")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rules := run(t, "iptables-save"); strings.Contains(rules, "physdev") || strings.Contains(rules, "EDGEMESH-LOAD") {
		t.Errorf("left of the request:\n%s", rules)
	}
}

// TestBridgeFilterLoaded: br_netfilter, loaded for ours, leaves the bridges of others as they were, and what sysctl.d sets.
func TestBridgeFilterLoaded(t *testing.T) {
	ns := enter(t)
	err := onThread(ns, func() error {
		if err := errors.Join(hideBridges(), configure()); err != nil {
			return err
		}
		return sysctl.LoadBridgeFilter(showBridges)
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"iptables": "0", "ip6tables": "1", "arptables": "0"} {
		if v, err := sysctl.Read("net/bridge/bridge-nf-call-" + key); v != want || err != nil {
			t.Errorf("bridge-nf-call-%s is %s: %v", key, v, err)
		}
	}
	run(t, "sysctl -qw net.bridge.bridge-nf-call-iptables=1") // loaded before: an operator's own setting
	if err := sysctl.LoadBridgeFilter(func() error { return errors.New("called") }); err != nil {
		t.Error(err)
	}
	if v, _ := sysctl.Read("net/bridge/bridge-nf-call-iptables"); v != "1" {
		t.Errorf("an operator's setting became %s", v)
	}
}
