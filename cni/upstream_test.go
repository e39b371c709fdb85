package main_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/test/tier"
)

// upstream is what an operator may chain behind our plugin, and what it must then do.
type upstream struct {
	name    string
	chained []string       // the plugins' configurations
	ours    map[string]any // further keys of ours
	args    map[string]any // the runtime's, by capability
	does    func(*attachment) error
	// fails says, for a version, why the plugin cannot do it, and a part of the error; "" where it has to work.
	fails func(version string) (why, says string)
}

// The arguments that runtimes have for these capabilities: a hostPort, and 8 Mbit/s with a bucket of 100 kB in both directions.
var (
	mapped  = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	limited = map[string]any{"bandwidth": map[string]any{"ingressRate": 8 * rate, "ingressBurst": 8 * bucket, "egressRate": 8 * rate, "egressBurst": 8 * bucket}}
)

const rate, bucket = 1_000_000, 100_000 // bytes a second, bytes

// The plugins of the CNI project that have something to do behind ours.
func upstreams(vrf bool) []upstream {
	const portmap, bandwidth, firewall = `{"type":"portmap","capabilities":{"portMappings":true}}`, `{"type":"bandwidth","capabilities":{"bandwidth":true}}`, `{"type":"firewall","backend":"iptables"}`
	const sysctl, mac, sbr = `{"type":"tuning","sysctl":{"net.core.somaxconn":"512"},"mtu":1400}`, `{"type":"tuning","mac":"02:11:22:33:44:55"}`, `{"type":"sbr"}`
	since040 := func(version string) (string, string) {
		if version == "0.3.1" {
			return "the firewall plugin begins with 0.4.0", "incompatible CNI versions"
		}
		return "", ""
	}
	return []upstream{
		{name: "alone"},
		{name: "portmap", chained: []string{portmap}, args: mapped, does: mapsPort("127.0.0.1")},
		{name: "portmap nftables", chained: []string{strings.Replace(portmap, ",", `,"backend":"nftables",`, 1)}, args: mapped, does: mapsPort("127.0.0.1")},
		{name: "portmap without snat", chained: []string{strings.Replace(portmap, ",", `,"snat":false,`, 1)}, args: mapped, does: mapsPort()},
		{name: "bandwidth", chained: []string{bandwidth}, args: limited, does: limits},
		{name: "tuning sysctl, mtu", chained: []string{sysctl}, does: tunes},
		{name: "tuning promisc, allmulti", chained: []string{`{"type":"tuning","promisc":true,"allmulti":true}`}, does: func(a *attachment) error {
			return a.hasFlags(unix.IFF_PROMISC | unix.IFF_ALLMULTI)
		}},
		{name: "tuning mac", chained: []string{mac}, fails: func(version string) (string, string) {
			if version == "0.3.1" { // has no CHECK
				return "the source filter drops what comes from another MAC", "ping"
			}
			return "CHECK names what the source filter will drop", "a chained plugin has set the MAC"
		}},
		{name: "tuning mac, allowSpoofing", chained: []string{mac}, ours: map[string]any{"allowSpoofing": true}, does: func(a *attachment) error {
			return a.says(a.pod, "02:11:22:33:44:55", "ip", "link", "show", "eth0")
		}},
		{name: "firewall", chained: []string{firewall}, does: forwards, fails: since040},
		{name: "firewall same-bridge", chained: []string{strings.Replace(firewall, "}", `,"ingressPolicy":"same-bridge"}`, 1)}, fails: since040, does: func(a *attachment) error {
			return errors.Join(forwards(a), a.says(a.node.netns, "-i edgemesh-br ! -o edgemesh-br", "iptables", "-S"))
		}},
		{name: "sbr", chained: []string{sbr}, does: ownTable},
		{name: "vrf", chained: []string{`{"type":"vrf","vrfname":"blue"}`}, fails: func(string) (string, string) {
			if vrf {
				return "", ""
			}
			return "this kernel has no VRF", "not supported"
		}},
		{name: "all five", chained: []string{portmap, bandwidth, sysctl, firewall, sbr}, fails: since040,
			args: map[string]any{"portMappings": mapped["portMappings"], "bandwidth": limited["bandwidth"]}, does: func(a *attachment) error {
				return errors.Join(mapsPort("127.0.0.1")(a), limits(a), tunes(a), forwards(a), ownTable(a), filters(a))
			}},
	}
}

// Upstream's plugins do their work behind ours in one list, as runtimes call it, in every version of the specification. What cannot
// work fails as it is known to. EDGEMESH_TIER=long tries every plugin in every version.
func TestUpstream(t *testing.T) {
	tier.All(t)
	full := tier.IsLong()
	referencePlugins(t)
	vrf := newLAN(t).vrf()
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for _, u := range upstreams(vrf) {
			if !full && (u.name == "alone") == (version == "1.1.0") {
				continue
			}
			t.Run(version+" "+u.name, func(t *testing.T) { newLAN(t).judge(t, version, u) })
		}
	}
}

// lan is a node and a host of its LAN.
type lan struct {
	*node
	host ns.NetNS
}

func newLAN(t *testing.T) *lan {
	t.Helper()
	l := &lan{newNode(t, dualStack...), newNS(t)}
	inNS(t, l.netns, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	inNS(t, l.netns, "ip", "link", "add", "lan0", "type", "veth", "peer", "name", "eth0", "netns", filepath.Base(l.host.Path()))
	for _, end := range []struct {
		netns  ns.NetNS
		device string
		last   int
	}{{l.netns, "lan0", 1}, {l.host, "eth0", 2}} {
		inNS(t, end.netns, "ip", "addr", "add", fmt.Sprintf("192.168.7.%d/24", end.last), "dev", end.device)
		inNS(t, end.netns, "ip", "addr", "add", fmt.Sprintf("fd00:7::%d/64", end.last), "dev", end.device, "nodad")
		inNS(t, end.netns, "ip", "link", "set", end.device, "up")
	}
	return l
}

// judge tries one, which has to work, or to fail as it says.
func (l *lan) judge(t *testing.T, version string, u upstream) {
	t.Helper()
	a := l.attach(t, version, u)
	err := a.tried()
	var why, says string
	if u.fails != nil {
		why, says = u.fails(version)
	}
	switch {
	case why == "" && err != nil:
		t.Error(err)
	case why != "" && err == nil:
		t.Errorf("works, and is listed as failing because %s", why)
	case why != "" && !strings.Contains(err.Error(), says):
		t.Errorf("fails with %v, and not because %s", err, why)
	case why != "":
		t.Logf("expected: %s: %v", why, err)
	}
	for range 2 { // runtimes repeat it
		err := a.on(a.node.netns, func() error { return a.cni.DelNetworkList(t.Context(), a.list, a.rt) })
		if err != nil && why != "" && strings.Contains(err.Error(), says) {
			return // a plugin that does not know the version refuses DEL, too, before ours is called
		}
		if err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	if err := a.gone(); err != nil {
		t.Errorf("after DEL: %v", err)
	}
}

// attachment is a pod's, through a list of plugins.
type attachment struct {
	*upstream
	t    *testing.T
	node *lan
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	rt   *libcni.RuntimeConf
	pod  ns.NetNS
	ips  []string
}

func (l *lan) attach(t *testing.T, version string, u upstream) *attachment {
	t.Helper()
	l.serial++
	ours := map[string]any{"cniVersion": version}
	for k, v := range u.ours {
		ours[k] = v
	}
	plugins := append([]string{string(l.netconf(ours))}, u.chained...)
	text := fmt.Sprintf(`{"cniVersion":%q,"name":"edgemesh","plugins":[%s]}`, version, strings.Join(plugins, ","))
	list, err := libcni.ConfListFromBytes([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	a := &attachment{upstream: &u, t: t, node: l, list: list, cni: libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(), nil), pod: newNS(t)}
	a.rt = &libcni.RuntimeConf{ContainerID: fmt.Sprintf("web-c%d", l.serial), NetNS: a.pod.Path(), IfName: "eth0", CapabilityArgs: u.args,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web-0"}}}
	return a
}

// on calls f in a namespace.
func (a *attachment) on(netns ns.NetNS, f func() error) error {
	return netns.Do(func(ns.NetNS) error { return f() })
}

// tried makes the version's calls but DEL, and sees what the plugins do.
func (a *attachment) tried() error {
	ctx, version := a.t.Context(), a.list.CNIVersion
	err := a.on(a.node.netns, func() error {
		res, err := a.cni.AddNetworkList(ctx, a.list, a.rt)
		if err != nil {
			return fmt.Errorf("ADD: %w", err)
		}
		if res.Version() != version {
			return fmt.Errorf("a result of version %s", res.Version())
		}
		result, err := current.NewResultFromResult(res)
		if err != nil {
			return err
		}
		for _, ip := range result.IPs {
			a.ips = append(a.ips, ip.Address.IP.String())
		}
		return a.checked(ctx)
	})
	if err != nil {
		return err
	}
	if err := a.answers(); err != nil {
		return err
	}
	if a.does != nil {
		if err := a.does(a); err != nil {
			return err
		}
	}
	if version != "1.1.0" {
		return nil
	}
	err = a.on(a.node.netns, func() error {
		valid := []types.GCAttachment{{ContainerID: a.rt.ContainerID, IfName: a.rt.IfName}}
		if err := a.cni.GCNetworkList(ctx, a.list, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
			return fmt.Errorf("GC: %w", err)
		}
		if err := a.cni.GetStatusNetworkList(ctx, a.list); err != nil {
			return fmt.Errorf("STATUS: %w", err)
		}
		return a.checked(ctx) // what is valid stays
	})
	return errors.Join(err, a.answers())
}

func (a *attachment) checked(ctx context.Context) error {
	if a.list.CNIVersion == "0.3.1" {
		return nil
	}
	if err := a.cni.CheckNetworkList(ctx, a.list, a.rt); err != nil {
		return fmt.Errorf("CHECK: %w", err)
	}
	return nil
}

// answers pings the pod's addresses from its node.
func (a *attachment) answers() error {
	if len(a.ips) != 2 {
		return fmt.Errorf("addresses %v", a.ips)
	}
	return errors.Join(answers(a.node.netns, a.ips[0]), answers(a.node.netns, a.ips[1]))
}

// gone wants nothing of the pod to be left on its node.
func (a *attachment) gone() error {
	var errs []error
	if err := a.says(a.pod, "eth0", "ip", "-o", "link"); err == nil {
		errs = append(errs, errors.New("eth0"))
	}
	links := inNS(a.t, a.node.netns, "ip", "-o", "link")
	for line := range strings.Lines(links) {
		if strings.HasPrefix(line, "Error: Peer netns") { // ip looks at all files in /run/netns, of which one is being made or deleted just now
			continue
		}
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		if !slices.Contains([]string{"lo:", "lan0", "edgemesh-br:"}, name) {
			errs = append(errs, fmt.Errorf("interface %s", name))
		}
	}
	for _, command := range [][]string{{"iptables-save"}, {"ip6tables-save"}, {"nft", "list", "ruleset"}} {
		rules := inNS(a.t, a.node.netns, command...)
		for _, mark := range append(a.ips, a.rt.ContainerID, "8080") {
			if strings.Contains(rules, mark) {
				errs = append(errs, fmt.Errorf("%s has %s:\n%s", command[0], mark, rules))
			}
		}
	}
	if used := a.node.used(); len(used) > 0 {
		errs = append(errs, fmt.Errorf("records %v", used))
	}
	return errors.Join(errs...)
}

// says wants a command to print something.
func (a *attachment) says(netns ns.NetNS, want string, command ...string) error {
	return a.on(netns, func() error {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			err = errors.Join(fmt.Errorf("%s does not say %q:\n%s", strings.Join(command, " "), want, out), err)
		}
		return err
	})
}

// mapsPort: the hostPort leads to the pod, which sees who comes from the LAN; and from the node itself by its gateway's address, and by these.
func mapsPort(further ...string) func(*attachment) error {
	return func(a *attachment) error {
		serve(a.t, a.pod, ":80")
		var errs []error
		try := func(netns ns.NetNS, to, want string) {
			from, err := reach(netns, net.JoinHostPort(to, "8080"))
			if err == nil && want != "" && from != want {
				err = fmt.Errorf("the pod sees %s", from)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("hostPort at %s: %w", to, err))
			}
		}
		try(a.node.host, "192.168.7.1", "192.168.7.2")
		try(a.node.host, "fd00:7::1", "fd00:7::2")
		for _, own := range append(further, "10.244.1.1") {
			try(a.node.netns, own, "")
		}
		return errors.Join(errs...)
	}
}

// limits: both directions have a token bucket, and 600 kB take as long as they must.
func limits(a *attachment) error {
	const size, least = 6 * bucket, (6*bucket - bucket) * time.Second / rate * 9 / 10
	err := a.on(a.node.netns, func() error {
		all, err := netlink.QdiscList(nil)
		if err != nil {
			return err
		}
		buckets := 0
		for _, q := range all {
			if tbf, ok := q.(*netlink.Tbf); ok && tbf.Rate == rate {
				buckets++
			}
		}
		if buckets != 2 {
			return fmt.Errorf("%d buckets of %d bytes a second", buckets, rate)
		}
		return nil
	})
	listen(a.t, a.pod, ":81", func(c net.Conn) { // takes size bytes and says so, or gives them
		verb := []byte{0}
		if _, err := io.ReadFull(c, verb); err != nil {
			return
		}
		if verb[0] == 'g' {
			_, _ = c.Write(make([]byte, size))
			return
		}
		_, _ = io.CopyN(io.Discard, c, size)
		_, _ = c.Write(verb)
	})
	for _, flow := range []struct {
		verb       string
		send, wait int
	}{{"get", 1, size}, {"put", 1 + size, 1}} {
		start := time.Now()
		err = errors.Join(err, a.on(a.node.netns, func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(a.ips[0], "81"), 10*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			data := make([]byte, flow.send)
			data[0] = flow.verb[0]
			if _, err := c.Write(data); err != nil {
				return err
			}
			_, err = io.CopyN(io.Discard, c, int64(flow.wait))
			return err
		}))
		if took := time.Since(start); took < least {
			err = errors.Join(err, fmt.Errorf("%s: %d bytes in %v, faster than %v", flow.verb, size, took, least))
		}
	}
	return err
}

// tunes: the sysctl and the MTU are set.
func tunes(a *attachment) error {
	return errors.Join(a.says(a.pod, "512", "cat", "/proc/sys/net/core/somaxconn"), a.says(a.pod, "mtu 1400", "ip", "link", "show", "eth0"))
}

// forwards: the firewall has the rules of the pod.
func forwards(a *attachment) error {
	return errors.Join(a.says(a.node.netns, a.ips[0]+"/32", "iptables", "-S", "CNI-FORWARD"),
		a.says(a.node.netns, a.ips[1]+"/128", "ip6tables", "-S", "CNI-FORWARD"))
}

// ownTable: what has the pod's address leaves by a table of its own. Sockets without one have no default route, as behind the
// reference bridge.
func ownTable(a *attachment) error {
	return errors.Join(a.says(a.pod, "from "+a.ips[0]+" lookup 100", "ip", "rule"),
		a.says(a.pod, "default via 10.244.1.1", "ip", "route", "show", "table", "100"),
		answers(a.pod, "192.168.7.1", "-I", a.ips[0]))
}

// filters: the source filter stands beside the bandwidth plugin's qdisc.
func filters(a *attachment) error {
	const spoofed = "10.244.1.99"
	inNS(a.t, a.pod, "ip", "addr", "add", spoofed+"/32", "dev", "eth0")
	if ping(a.pod, "10.244.1.1", "-I", spoofed) == nil {
		return errors.New("a spoofed source got an answer")
	}
	return answers(a.pod, "10.244.1.1", "-I", a.ips[0])
}

// hasFlags wants the pod's interface to have these.
func (a *attachment) hasFlags(flags uint32) error {
	return a.on(a.pod, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil && link.Attrs().RawFlags&flags != flags {
			err = fmt.Errorf("flags %#x, want %#x", link.Attrs().RawFlags, flags)
		}
		return err
	})
}

// vrf says that the kernel has VRF.
func (l *lan) vrf() bool {
	return l.netns.Do(func(ns.NetNS) error {
		vrf := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "emvrf"}, Table: 4711}
		return errors.Join(netlink.LinkAdd(vrf), netlink.LinkDel(vrf))
	}) == nil
}
