package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	netns "github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/internal/cni/conf"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// webPolicy lets near, far and the laptop reach HTTP of web, far SCTP port 7777 also; web may reach far alone.
const webPolicy = `---
kind: NetworkPolicy
apiVersion: networking.k8s.io/v1
metadata: {namespace: default, name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [near, far]}]}}, {ipBlock: {cidr: LAPTOP/32}}]
    ports: [{port: 9376}]
  - from: [{podSelector: {matchLabels: {app: far}}}]
    ports: [{protocol: SCTP, port: 7777}]
  egress:
  - to: [{podSelector: {matchLabels: {app: far}}}]
`

// judged are web and near on one node, far and stranger on another of the same LAN, and hosts of the LAN. Both nodes translate Services as
// kube-proxy does, and web's node a hostPort as portmap does.
type judged struct {
	*lanPair
	web, near, odd, far, stranger *lab.Pod
	laptop, visitor               *lab.NS
}

// TestPolicyOnEveryPath: one judge for what comes over native, VXLAN and tunnel paths, from the same node, from nodes, from hosts of the
// LAN through a hostPort, and through Services; what belongs to an accepted connection passes: neighbour discovery, path-MTU messages.
func TestPolicyOnEveryPath(t *testing.T) {
	beside(t)
	file := filepath.Join(t.TempDir(), "policies.yaml")
	ok(t, os.WriteFile(file, nil, 0o600))
	j := judged{lanPair: newLANPair(t, func(p *lanPair) { p.lab.Cluster.Policies = file })}
	j.web, j.near, j.odd = pod(t, j.n1, "web"), pod(t, j.n1, "near"), pod(t, j.n1, "odd")
	j.far, j.stranger = pod(t, j.n2, "far"), pod(t, j.n2, "stranger")
	laptop, addr, err := j.site.AddHost("laptop")
	ok(t, err)
	visitor, _, err := j.site.AddHost("visitor")
	ok(t, err)
	j.laptop, j.visitor = laptop, visitor
	services := map[netip.Addr]netip.Addr{}
	for i, p := range []*lab.Pod{j.web, j.far, j.stranger} {
		services[vip(i, false)], services[vip(i, true)] = p.IP4(), p.IP6()
	}
	for _, n := range []*lab.Node{j.n1, j.n2} {
		for from, to := range services {
			translate(t, n, "PREROUTING", from, to)
		}
		for _, a := range j.web.Addrs {
			ok(t, n.Script(fmt.Sprintf("%s -w -t nat -A POSTROUTING -s %s -d %[2]s -j MASQUERADE", iptables(a), a))) // KUBE-POSTROUTING's for hairpins
		}
	}
	translate(t, j.n1, "PREROUTING", j.n1.Addr, j.web.IP4())
	ok(t, lab.ReplaceFile(file, policyFile(strings.ReplaceAll(webPolicy, "LAPTOP", addr.String()), j.web, j.near, j.odd, j.far, j.stranger)))
	ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error { _, err := j.near.Get(t.Context(), j.web.IP4(), time.Second); return err }))

	curlPods(t, j.odd, j.stranger, 5*time.Second)
	j.both(t, 20*time.Second, "native")
	j.judge(t, "native")
	if !tier.IsLong() {
		return
	}
	for _, c := range []struct {
		path []string
		lan  map[string]any
	}{{[]string{"vxlan"}, map[string]any{"native": false}}, {[]string{"direct", "punched", "relayed"}, map[string]any{"native": false, "vxlan": false}}} {
		for _, n := range []*lab.Node{j.n1, j.n2} {
			ok(t, n.Agent.Stop())
			n.Config.LAN = c.lan
			ok(t, n.Start())
		}
		ready(t, j.n1, j.n2)
		curlPods(t, j.odd, j.stranger, 5*time.Second)
		j.both(t, 20*time.Second, c.path...)
		j.judge(t, c.path[0])
	}
}

// vip is the ClusterIP of the i-th Service.
func vip(i int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:96::%d", 1+i))
	}
	return netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + i)})
}

func iptables(a netip.Addr) string {
	if a.Is6() {
		return "ip6tables"
	}
	return "iptables"
}

func translate(t *testing.T, n *lab.Node, chain string, from, to netip.Addr) {
	t.Helper()
	ok(t, n.Script(fmt.Sprintf("%s -w -t nat -A %s -d %s -p tcp --dport %d -j DNAT --to-destination %s", iptables(to), chain, from, lab.ServePort,
		netip.AddrPortFrom(to, lab.ServePort))))
}

// judge checks all that the policy allows, and what it does not, all at the same time.
func (j *judged) judge(t *testing.T, path string) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	want := func(what string, from *lab.NS, to netip.Addr, passes bool) {
		all.Go(func() {
			if !passes {
				noAnswer(t, from, to, path+": "+what)
			} else if _, err := from.Get(t.Context(), to, 5*time.Second); err != nil {
				t.Errorf("%s: %s: %v", path, what, err)
			}
		})
	}
	ok(t, j.n1.Script("ip neigh flush dev edgemesh-br", "ip -6 neigh flush dev edgemesh-br"))
	for _, p := range []*lab.Pod{j.web, j.near, j.odd} {
		ok(t, p.Script("ip -6 neigh flush dev eth0"))
	}
	linkLocal := func(p *lab.Pod) netip.Addr { return conf.LinkLocal(conf.PodMAC(p.IP4())).WithZone("eth0") }
	want("a pod of the node that is not allowed, by link-local addresses", j.odd.NS, linkLocal(j.web), false)
	want("a pod of the node without policies, by link-local addresses", j.odd.NS, linkLocal(j.near), true)
	for _, v6 := range []bool{false, true} {
		at := func(p *lab.Pod) netip.Addr {
			if v6 {
				return p.IP6()
			}
			return p.IP4()
		}
		want("a pod of the node that is allowed", j.near.NS, at(j.web), true)
		want("a pod of the node that is not", j.odd.NS, at(j.web), false)
		want("another node's pod that is allowed", j.far.NS, at(j.web), true)
		want("another node's pod that is not", j.stranger.NS, at(j.web), false)
		want("the own node", j.n1.NS, at(j.web), true)
		want("another node", j.n2.NS, at(j.web), false)
		want("out, to a pod that is allowed", j.web.NS, at(j.far), true)
		want("out, to a pod that is not", j.web.NS, at(j.stranger), false)
		want("out, to a pod of the node that is not", j.web.NS, at(j.odd), false)
		want("itself, through a Service", j.web.NS, vip(0, v6), true)
		want("a Service: a pod of the node that is allowed", j.near.NS, vip(0, v6), true)
		want("a Service: a pod of the node that is not", j.odd.NS, vip(0, v6), false)
		want("a Service: another node's pod that is allowed", j.far.NS, vip(0, v6), true)
		want("a Service: another node's pod that is not", j.stranger.NS, vip(0, v6), false)
		want("out, to a Service of a pod that is allowed", j.web.NS, vip(1, v6), true)
		want("out, to a Service of a pod that is not", j.web.NS, vip(2, v6), false)
	}
	want("a hostPort, from a host that is allowed", j.laptop, j.n1.Addr, true)
	want("a hostPort, from one that is not", j.visitor, j.n1.Addr, false)
	j.pathMTU(t, path)
	j.sctp(t, path)
}

// pathMTU: web learns that packets of an allowed connection are too large. The message comes from a node that may not reach web.
func (j *judged) pathMTU(t *testing.T, path string) {
	for _, a := range j.far.Addrs {
		v := map[bool]string{false: "-4", true: "-6"}[a.Is6()]
		ok(t, j.n2.Script(fmt.Sprintf("ip %s rule add to %s pref 1 lookup 99", v, a), fmt.Sprintf("ip %s route replace %s dev edgemesh-br mtu 1300 table 99", v, a)))
		out, _ := j.web.Run(t.Context(), "ping", v, "-n", "-M", "do", "-s", "1350", "-c", "3", "-i", "0.2", "-W", "1", a.String())
		if !strings.Contains(strings.ReplaceAll(out, " = ", "="), "mtu=1300") {
			t.Errorf("%s: the message that a packet is too large did not arrive: %s", path, out)
		}
		ok(t, j.n2.Script(fmt.Sprintf("ip %s rule del to %s pref 1 lookup 99", v, a)))
		ok(t, j.web.Script(fmt.Sprintf("ip %s route flush cache", v)))
	}
}

// sctp sends INITs (RFC 9260, section 3.3.2) by raw sockets: no kernel needs to have SCTP for that.
func (j *judged) sctp(t *testing.T, path string) {
	socket := func(ns *lab.NS) (c net.PacketConn) {
		ok(t, netns.WithNetNSPath("/run/netns/"+ns.Full, func(netns.NetNS) (err error) {
			c, err = net.ListenPacket("ip4:132", "0.0.0.0")
			return err
		}))
		t.Cleanup(func() { c.Close() })
		return c
	}
	web, far, stranger := socket(j.web.NS), socket(j.far.NS), socket(j.stranger.NS)
	for range 3 {
		for _, port := range []uint16{7778, 7777} {
			for from, c := range map[uint16]net.PacketConn{1: far, 2: stranger} {
				b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), port)
				b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
				binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
				_, err := c.WriteTo(b, &net.IPAddr{IP: j.web.IP4().AsSlice()})
				ok(t, err)
			}
		}
	}
	got := map[string]int{}
	ok(t, web.SetReadDeadline(time.Now().Add(time.Second)))
	for b := make([]byte, 100); ; {
		n, _, err := web.ReadFrom(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		ok(t, err)
		if n >= 4 {
			got[fmt.Sprint(binary.BigEndian.Uint16(b), " to ", binary.BigEndian.Uint16(b[2:]))]++
		}
	}
	if len(got) != 1 || got["1 to 7777"] == 0 {
		t.Errorf("%s: SCTP INITs that arrived: %v, want those of 1 (far) to port 7777", path, got)
	}
}

// TestPolicyThroughput: one flow between two isolated pods is as fast as without policies, on a native path and through the tunnel:
// interleaved, missed if the geometric mean of ratios is below 0.97 by more than two standard errors. Only a quiet machine can judge it.
func TestPolicyThroughput(t *testing.T) {
	tier.Long(t)
	const rounds = 10
	file := filepath.Join(t.TempDir(), "policies.yaml")
	ok(t, os.WriteFile(file, nil, 0o600))
	p := newLANPair(t, func(p *lanPair) { p.lab.Cluster.Policies = file })
	isolated := policyFile(`---
kind: NetworkPolicy
apiVersion: networking.k8s.io/v1
metadata: {namespace: default, name: each-other}
spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {}}]}], egress: [{to: [{podSelector: {}}]}]}
`, p.pod1, p.pod2)
	flow := func(policies string) float64 {
		ok(t, lab.ReplaceFile(file, policies))
		ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error {
			for _, pod := range []*lab.Pod{p.pod1, p.pod2} {
				out, err := pod.Node.Run(t.Context(), "nft", "list", "ruleset")
				if err != nil || strings.Contains(out, pod.IP4().String()+" : jump in-") != (policies != "") {
					return fmt.Errorf("%s: the file does not count yet: %w", pod.Node.Name, err)
				}
			}
			return nil
		}))
		time.Sleep(2500 * time.Millisecond) // sleep: the repair that each change of rules wakes has passed
		var b lab.Bulk
		ok(t, p.pod1.Tool(within(t, time.Minute), &b, "bulk", "--bytes", "1000000000", "--sum=false", p.pod2.IP4().String()))
		return b.Mbps
	}
	for _, path := range []string{"native", "direct"} {
		if path == "direct" {
			for _, n := range []*lab.Node{p.n1, p.n2} {
				ok(t, n.Agent.Stop())
				n.Config.LAN = map[string]any{"native": false, "vxlan": false}
				ok(t, n.Start())
			}
			ready(t, p.n1, p.n2)
		}
		curlPods(t, p.pod1, p.pod2, 5*time.Second)
		p.both(t, 20*time.Second, path)
		var sum, squares float64
		for i := range rounds {
			mbps := map[bool]float64{}
			for _, with := range []bool{i%2 == 0, i%2 != 0} {
				mbps[with] = flow(map[bool]string{true: isolated}[with])
			}
			ratio := math.Log(mbps[true] / mbps[false])
			sum, squares = sum+ratio, squares+ratio*ratio
		}
		mean := sum / rounds
		deviation := math.Sqrt(max(0, squares/rounds-mean*mean) / (rounds - 1)) // of the mean
		text := fmt.Sprintf("%s: %.3f of the throughput without policies, at most %.3f within two standard errors", path, math.Exp(mean), math.Exp(mean+2*deviation))
		if t.Log(text); math.Exp(mean+2*deviation) < 0.97 {
			t.Error(text + ": want 0.97")
		}
	}
}
