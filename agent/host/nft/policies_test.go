package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/nstest"
)

// parsed are policies p0, p1, … of namespace shop, from their specs.
func parsed(t *testing.T, specs []string) (all []policy.Policy) {
	t.Helper()
	for i, s := range specs {
		n := policy.NetworkPolicy{Metadata: policy.Metadata{Namespace: "shop", Name: fmt.Sprint("p", i)}}
		if err := yaml.UnmarshalStrict([]byte(s), &n.Spec); err != nil {
			t.Fatal(err)
		}
		p, err := policy.Parse(n)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// world is local pods web (10.1.1.2, fd00::2) and db (10.1.1.3, fd00::3) of shop, and mon (10.1.3.2) of ops elsewhere.
func world(t *testing.T, specs ...string) (policy.Rules, map[netip.Addr]string) {
	t.Helper()
	pods, at := []policy.Pod{}, map[netip.Addr]string{}
	for _, p := range []struct{ namespace, name, v4, v6 string }{{"shop", "web", "10.1.1.2", "fd00::2"}, {"shop", "db", "10.1.1.3", "fd00::3"}, {"ops", "mon", "10.1.3.2", "fd00:3::2"}} {
		v4, v6 := netip.MustParseAddr(p.v4), netip.MustParseAddr(p.v6)
		pods = append(pods, policy.Pod{Namespace: p.namespace, Name: p.name, Labels: map[string]string{"app": p.name}, Addrs: []netip.Addr{v4, v6},
			Ports: []policy.ContainerPort{{NamedPort: policy.NamedPort{Name: "main", Protocol: 6}, Number: 8080}}})
		if p.name != "mon" {
			at[v4], at[v6] = "shop/"+p.name, "shop/"+p.name
		}
	}
	all := parsed(t, specs)
	namespaces := map[string]map[string]string{"shop": {}, "ops": {"tier": "back"}}
	return policy.Compile(all, pods[:2], func(g policy.Group) []policy.Member { return g.Members(namespaces, pods) }), at
}

func enforcing(r policy.Rules, at map[netip.Addr]string) func() (policy.Placed, error) {
	return func() (policy.Placed, error) { return r.Place(at), nil }
}

func listed(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "-s", "list", "table", "inet", "edgemesh-policy").CombinedOutput()
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(out), "\n") // chains and sets stand in the order in which they were made
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

const every = `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress],
	ingress: [{from: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.9.0.0/16]}}, {ipBlock: {cidr: 10.8.0.0/15}}, {ipBlock: {cidr: 10.9.1.0/24}},
		{ipBlock: {cidr: "fd00::/16"}}, {ipBlock: {cidr: "fd00:0:1::/48"}}], ports: [{port: 80}, {port: 90, endPort: 99}, {protocol: UDP}]}],
	egress: [{to: [{namespaceSelector: {matchLabels: {tier: back}}}], ports: [{port: main}, {port: 53, protocol: UDP}]}]}`

// TestPoliciesInTheKernel: rules of each kind are taken; a second pass changes nothing; changed policies change what differs; what the
// kernel refuses names the policy and leaves what was; without policies there is no table.
func TestPoliciesInTheKernel(t *testing.T) {
	nstest.Enter(t)
	p := NewPolicies(slog.New(slog.DiscardHandler))
	rules, at := world(t, every)
	if err := p.Enforce(enforcing(rules, at)); err != nil {
		t.Fatal(err)
	}
	first := listed(t)
	count := func() uint32 { n, _ := generation(); return n }
	before := count()
	for _, again := range []*Policies{p, p, NewPolicies(p.log)} { // the last is an agent that has just started
		if err := again.Enforce(enforcing(rules, at)); err != nil || count() != before || !again.Standing() {
			t.Errorf("a second pass: %v, generation %d after %d", err, count(), before)
		}
	}
	if c, err := p.Counts(true); err != nil || len(c.HitsOf(policy.Ingress, rules.Pods["shop/web"][0])) != 1 {
		t.Errorf("counts: %v, %+v", err, c)
	}
	more, _ := world(t, every, `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}`)
	if err := p.Enforce(enforcing(more, at)); err != nil || listed(t) == first {
		t.Errorf("another policy: %v", err)
	}
	if err := p.Enforce(enforcing(rules, at)); err != nil || listed(t) != first {
		t.Errorf("back again: %v\n%s", err, listed(t))
	}
	for name, c := range rules.Chains {
		bad := c
		bad.Accepts = append([]policy.Accept{{Policy: "shop/bad", Groups: []string{strings.Repeat("x", 300)}}}, c.Accepts...)
		broken := rules
		broken.Chains = map[string]policy.Chain{name: bad, "new": bad}
		broken.Pods = map[string][2]string{"shop/web": {"new", "new"}}
		for _, pass := range []string{"first", "second"} {
			before := count()
			if err := p.Enforce(enforcing(broken, at)); err == nil || !strings.Contains(err.Error(), "NetworkPolicy shop/bad: ") {
				t.Errorf("a policy that the kernel refuses: %v", err)
			}
			if pass == "second" && count() != before {
				t.Error("a policy that stays refused changes the kernel's tables at each pass, and so wakes the next one")
			}
		}
		break
	}
	if listed(t) != first {
		t.Errorf("after a refused transaction: %s", listed(t))
	}
	for _, undo := range []string{"nft flush ruleset", "nft flush table inet edgemesh-policy", "nft flush chain inet edgemesh-policy forward"} {
		nstest.Run(t, undo)
		if _, err := p.Counts(true); (err == nil) != strings.Contains(undo, "flush chain") {
			t.Errorf("counts after %s: %v", undo, err)
		}
		if err := p.Enforce(enforcing(rules, at)); err != nil || listed(t) != first {
			t.Errorf("after %s: %v\n%s", undo, err, listed(t))
		}
	}
	nstest.Run(t, "nft flush set inet edgemesh-policy apart-in4")
	err := p.Enforce(enforcing(rules, at)) // takes its members for granted
	p.whole = time.Time{}                  // 20 s later
	if err = errors.Join(err, p.Enforce(enforcing(rules, at))); err != nil || listed(t) != first {
		t.Errorf("after another program has flushed a set: %v\n%s", err, listed(t))
	}
	nstest.Run(t, "nft add table inet "+trialTable) // as a kill leaves it
	p.held.drop()                                   // the agent has ended
	if err := Cleanup(); err != nil || !strings.Contains(listed(t), "exit status 1") {
		t.Errorf("cleanup: %v\n%s", err, listed(t))
	} else if have, err := find(conn(), trialTable); err != nil || have != nil {
		t.Errorf("cleanup leaves %s: %v", trialTable, err)
	}
	if err := p.Enforce(enforcing(rules, at)); err != nil {
		t.Error(err)
	}
	if err := p.Enforce(func() (policy.Placed, error) { return policy.Placed{}, errors.New("no records") }); err == nil || listed(t) != first {
		t.Errorf("without records: %v", err)
	}
	if err := p.Enforce(enforcing(policy.Rules{}, nil)); err != nil || p.Standing() || !strings.Contains(listed(t), "exit status 1") {
		t.Errorf("without policies: %v\n%s", err, listed(t))
	}
}

// TestCut: a connection that has lost its right is deleted, by an agent that has just started, too; and one that has not is not.
func TestCut(t *testing.T) {
	nstest.Enter(t)
	rules, at := world(t, every)
	p := NewPolicies(slog.New(slog.DiscardHandler))
	if err := p.Enforce(enforcing(rules, at)); err != nil { // and is killed
		t.Fatal(err)
	}
	connection := func(port uint16) {
		client, server := net.IPv4(10, 1, 1, 3).To4(), net.IPv4(10, 1, 1, 2).To4()
		err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 100,
			Forward:   netlink.IPTuple{SrcIP: client, DstIP: server, SrcPort: 40000, DstPort: port, Protocol: unix.IPPROTO_TCP},
			Reverse:   netlink.IPTuple{SrcIP: server, DstIP: client, SrcPort: port, DstPort: 40000, Protocol: unix.IPPROTO_TCP},
			ProtoInfo: &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED}})
		if err != nil {
			t.Fatal(err)
		}
	}
	left := func() (ports []uint16) {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			ports = append(ports, c.Forward.DstPort)
		}
		slices.Sort(ports)
		return ports
	}
	connection(80)
	connection(22)
	again := NewPolicies(p.log)
	if err := errors.Join(again.Enforce(enforcing(rules, at)), again.Cut()); err != nil || !slices.Equal(left(), []uint16{80}) {
		t.Errorf("after a start: %v, left %v", err, left())
	}
	connection(22) // as if the policy had allowed it: only what may have lost a right is looked at
	if err := errors.Join(again.Enforce(enforcing(rules, at)), again.Cut()); err != nil || !slices.Equal(left(), []uint16{22, 80}) {
		t.Errorf("without a change: %v, left %v", err, left())
	}
	nstest.Run(t, "nft flush ruleset")
	if err := errors.Join(again.Enforce(enforcing(rules, at)), again.Cut()); err != nil || !slices.Equal(left(), []uint16{80}) {
		t.Errorf("after the pods were open: %v, left %v", err, left())
	}
}

// podIn is a namespace with the addresses 10.1.1.N and fd00::N behind the test's own, which routes, and its UDP sockets at ports 9 and 10.
func podIn(t *testing.T, ns nstest.Namespace, n int) (at [2]*net.UDPConn) {
	t.Helper()
	pod, err := nstest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pod.Close() })
	nstest.Prepare(t)
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(ns.Set())
	nstest.Run(t, fmt.Sprintf("ip link add v%d type veth peer name p%[1]d", n))
	link, err := netlink.LinkByName(fmt.Sprint("p", n))
	must(err)
	must(netlink.LinkSetNsFd(link, int(pod)), pod.Set())
	nstest.Run(t, fmt.Sprintf(`ip link set p%d up
ip address add 10.1.1.%[1]d/32 dev p%[1]d
ip address add fd00::%[1]d/128 dev p%[1]d nodad
ip route add 10.1.1.1 dev p%[1]d
ip route add default via 10.1.1.1
ip route add default via fe80::1 dev p%[1]d`, n))
	for i := range at {
		at[i], err = net.ListenUDP("udp", &net.UDPAddr{Port: 9 + i})
		must(err)
		t.Cleanup(func() { _ = at[i].Close() })
	}
	must(ns.Set())
	nstest.Run(t, fmt.Sprintf(`ip link set v%d up
ip address add 10.1.1.1/32 dev v%[1]d
ip address add fe80::1/64 dev v%[1]d nodad
ip route add 10.1.1.%[1]d dev v%[1]d
ip route add fd00::%[1]d dev v%[1]d`, n))
	return at
}

// TestCutConversation: a UDP conversation that has lost its right ends, though the isolated pod, which answers, is the first to send then; what
// that pod begins itself continues, and so does the conversation when it has its right again, whoever sends first. Answers do not lengthen
// the time that they are dropped, and are counted. With one port at both ends nothing is dropped but what rules drop.
func TestCutConversation(t *testing.T) {
	ns := nstest.Enter(t)
	web, db := podIn(t, ns, 2), podIn(t, ns, 3)
	nstest.Run(t, "sysctl -qw net.ipv4.ip_forward=1\nsysctl -qw net.ipv6.conf.all.forwarding=1")
	with, at := world(t, `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]}`)
	without, _ := world(t, `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}`)
	p := NewPolicies(slog.New(slog.DiscardHandler))
	for _, of := range []string{"10.1.1.", "fd00::"} {
		arrives := func(what string, from, to *net.UDPConn, n int, want bool) {
			t.Helper()
			_, err := from.WriteToUDP([]byte(what), &net.UDPAddr{IP: net.ParseIP(fmt.Sprint(of, n)), Port: to.LocalAddr().(*net.UDPAddr).Port})
			got := make([]byte, 100)
			_ = to.SetReadDeadline(time.Now().Add(map[bool]time.Duration{true: 5 * time.Second, false: 300 * time.Millisecond}[want]))
			if m, readErr := to.Read(got); (readErr == nil) != want || want && string(got[:m]) != what {
				t.Errorf("%s: %s: %v, arrives: %v, want %v", of, what, err, readErr == nil, want)
			}
		}
		enforce := func(r policy.Rules) {
			t.Helper()
			if err := errors.Join(p.Enforce(enforcing(r, at)), p.Cut()); err != nil {
				t.Fatal(err)
			}
		}
		enforce(with)
		arrives("a question", db[1], web[0], 2, true)
		arrives("its answer", web[0], db[1], 3, true)
		enforce(without)
		before, err := p.Counts(true)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			arrives("an answer after the cut", web[0], db[1], 3, false)
		}
		after, err := p.Counts(true)
		own := netip.MustParseAddr(fmt.Sprint(of, 2))
		if n := [2]uint64{after.Total[1] - before.Total[1], after.Pods[1][own] - before.Pods[1][own]}; err != nil || n != [2]uint64{2, 2} {
			t.Errorf("%s: counted as dropped, in all and of the pod: %v, want 2, %v", of, n, err)
		}
		cuts := func() []nftables.SetElement {
			t.Helper()
			all, err := conn().GetSetElements(&nftables.Set{Table: policyTable, Name: "cut" + suffix(own.Is6())})
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		if all := cuts(); len(all) != 1 || all[0].Expires > cutStays-500*time.Millisecond {
			t.Errorf("%s: %+v, want one that ends %v after the cut, 0.6 s ago", of, all, cutStays)
		}
		arrives("a question after the cut", db[1], web[0], 2, false)
		arrives("the isolated pod's own question", web[1], db[0], 3, true)
		arrives("the answer to it", db[0], web[1], 2, true)
		enforce(without) // which cuts nothing of that
		arrives("another answer to it", db[0], web[1], 2, true)
		enforce(with)
		arrives("a question with its right again", db[1], web[0], 2, true)
		arrives("the answer to that", web[0], db[1], 3, true)
		enforce(without)
		arrives("an answer after the second cut", web[0], db[1], 3, false)
		enforce(with)
		if all := cuts(); len(all) != 0 {
			t.Errorf("%s: with its right again %+v is left", of, all)
		}
		arrives("an answer with its right again", web[0], db[1], 3, true)
		arrives("a question from the same port", db[1], web[0], 2, true)

		arrives("a question with one port", db[0], web[0], 2, true)
		enforce(without)
		if all := cuts(); len(all) != 0 {
			t.Errorf("%s: noted with one port at both ends: %+v", of, all)
		}
		arrives("the isolated pod's own question with one port", web[0], db[0], 3, true)
		arrives("the answer with one port", db[0], web[0], 2, true)
	}
}

// TestNarrows: only what lets less through has connections looked at.
func TestNarrows(t *testing.T) {
	a := netip.MustParseAddr("10.1.1.2")
	placed := func(pod, chain string, members ...string) policy.Placed {
		p := policy.Placed{At: map[netip.Addr]policy.Place{a: {Pod: pod, Chains: [2]string{chain, ""}}}}
		p.Sets = map[string][]policy.Member{"g": nil}
		for _, m := range members {
			p.Sets["g"] = append(p.Sets["g"], policy.Member{Addr: netip.MustParseAddr(m)})
		}
		return p
	}
	one := placed("shop/web", "one", "10.1.1.3")
	for _, c := range []struct {
		what        string
		before, now policy.Placed
		narrows     bool
	}{
		{"nothing", one, one, false},
		{"a new member", one, placed("shop/web", "one", "10.1.1.3", "10.1.1.4"), false},
		{"a member less", one, placed("shop/web", "one", "10.1.1.4"), true},
		{"other rules", one, placed("shop/web", "two", "10.1.1.3"), true},
		{"no rules", one, policy.Placed{}, false},
		{"the first rules", policy.Placed{}, one, true},
		{"judged", placed("shop/web", policy.Closed), one, false},
		{"another pod", placed("shop/db", "one"), one, true},
	} {
		if got := narrows(c.before, c.now); got != c.narrows {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// BenchmarkPoliciedFlow compares one TCP flow (iperf3, 2 s) from a pod to another without policies with flows where both are isolated, and the
// group that accepts them has 10, 1,000 and 10,000 members: interleaved, with the mean of the ratios of each round and its standard error.
// It fails where a ratio is below 0.97 by more than two standard errors. -benchtime 20x makes 20 rounds of 8 s.
func BenchmarkPoliciedFlow(b *testing.B) {
	nstest.Enter(b)
	b.Setenv("D", b.TempDir())
	shell(b, `for i in 2 3; do
ip link add v$i type veth peer name p$i
unshare -n sleep 3600 >/dev/null 2>&1 & echo $! >"$D"/$i; sleep 0.2
ip link set p$i netns $(cat "$D"/$i)
ip addr add 10.1.1.1/32 dev v$i; ip link set v$i up; ip route add 10.1.1.$i dev v$i
nsenter -t $(cat "$D"/$i) -n sh -c "ip link set lo up; ip addr add 10.1.1.$i/32 dev p$i; ip link set p$i up; ip route add 10.1.1.1 dev p$i; ip route add default via 10.1.1.1"
done
sysctl -qw net.ipv4.ip_forward=1
nft add table inet t; nft 'add chain inet t f { type filter hook forward priority 0; }'; nft add rule inet t f ct state established accept`) // conntrack, as every node has it
	defer shell(b, `kill $(cat "$D"/2 "$D"/3)`)
	a2, a3 := netip.MustParseAddr("10.1.1.2"), netip.MustParseAddr("10.1.1.3")
	p := NewPolicies(slog.New(slog.DiscardHandler))
	flow := func(members int) (mbits float64) {
		rules, at := policy.Rules{}, map[netip.Addr]string{a2: "shop/a", a3: "shop/b"}
		if members > 0 {
			rules = policy.Rules{Pods: map[string][2]string{"shop/a": {"c", "c"}, "shop/b": {"c", "c"}}, Namespaces: map[string][2]bool{"shop": {true, true}},
				Chains: map[string]policy.Chain{"c": {Policies: []string{"shop/p"}, Accepts: []policy.Accept{{Policy: "shop/p", Groups: []string{"g"}}}}},
				Sets:   map[string][]policy.Member{"g": {{Addr: a2}, {Addr: a3}}}}
			for a := netip.MustParseAddr("10.2.0.1"); len(rules.Sets["g"]) < members; a = a.Next() {
				rules.Sets["g"] = append(rules.Sets["g"], policy.Member{Addr: a})
			}
		}
		if err := p.Enforce(enforcing(rules, at)); err != nil {
			b.Fatal(err)
		}
		out := shell(b, `nsenter -t $(cat "$D"/3) -n iperf3 -s -1 -D; sleep 0.3
nsenter -t $(cat "$D"/2) -n iperf3 -c 10.1.1.3 -t 2 -f m | awk '/receiver/{print $7}'`)
		if _, err := fmt.Sscan(strings.TrimSpace(out), &mbits); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return mbits
	}
	sizes := []int{0, 10, 1000, 10000}
	got := map[int][]float64{}
	round := 0
	for b.Loop() {
		for i := range sizes {
			n := sizes[(i+round)%len(sizes)]
			got[n] = append(got[n], flow(n))
		}
		round++
	}
	b.ReportMetric(0, "ns/op")
	for _, n := range sizes[1:] {
		var sum, squares float64
		for i, mbits := range got[n] {
			ratio := mbits / got[0][i]
			sum, squares = sum+ratio, squares+ratio*ratio
		}
		rounds := float64(round)
		mean := sum / rounds
		b.ReportMetric(mean, fmt.Sprintf("of-none/%d-members", n))
		if round < 2 {
			continue
		}
		deviation := math.Sqrt(max(0, squares/rounds-mean*mean) / (rounds - 1)) // of the mean
		if b.ReportMetric(deviation, fmt.Sprintf("standard-error/%d-members", n)); mean+2*deviation < 0.97 {
			b.Errorf("%d members: %.3f of the throughput without policies, standard error %.3f: want 0.97", n, mean, deviation)
		}
	}
}

// shell runs a script in the benchmark's namespace.
func shell(b *testing.B, script string) string {
	b.Helper()
	if nstest.Outside(b) {
		b.Fatal("outside of a namespace")
	}
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestHeld: the second table has the rules of the first, its hook comes later, it stays when another program flushes all tables, follows
// changes, and ends with its owner and with the last policy.
func TestHeld(t *testing.T) {
	nstest.Enter(t)
	rules, at := world(t, every)
	p := NewPolicies(slog.New(slog.DiscardHandler))
	second := func() string { // as the first one would be listed
		out, err := exec.Command("nft", "-s", "list", "table", "inet", "edgemesh-policy-held").CombinedOutput()
		if err != nil {
			return err.Error()
		}
		text := strings.NewReplacer("edgemesh-policy-held", "edgemesh-policy", "priority filter + 1;", "priority filter;").Replace(string(out))
		lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return l == "" || strings.Contains(l, "flags owner") })
		for i, l := range lines {
			lines[i], _, _ = strings.Cut(l, " # progname")
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	same := func(when string) {
		t.Helper()
		if err := p.Enforce(enforcing(rules, at)); err != nil {
			t.Fatal(err)
		}
		if first, held := strings.TrimLeft(listed(t), "\n"), second(); held != first || !strings.Contains(held, "hook forward") {
			t.Errorf("%s: the second table is\n%s\nnot\n%s", when, held, first)
		}
	}
	same("at the start")
	for _, undo := range []string{"nft flush ruleset", "nft delete table inet edgemesh-policy-held", "nft flush chain inet edgemesh-policy-held forward"} {
		_ = exec.Command("sh", "-c", undo).Run() // the kernel refuses the others
		if held := second(); !strings.Contains(held, "hook forward") || !strings.Contains(held, "jump in-") {
			t.Errorf("after %s: %s", undo, held)
		}
		same("after " + undo)
	}
	rules, at = world(t, every, `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.7.0.0/16}}]}]}`)
	same("another policy")
	p.held.drop()
	if held := second(); !strings.Contains(held, "exit status 1") {
		t.Errorf("its owner has ended: %s", held)
	}
	nstest.Run(t, "nft add table inet edgemesh-policy-held") // as nft 1.0.6 restores it
	same("after a start beside a copy without owner")
	p.held.drop()
	other, err := makeOwned("edgemesh-policy-held")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := p.Enforce(enforcing(rules, at)); err != nil || p.held.c != nil || p.held.without {
			t.Errorf("another program owns the table: %v, %+v", err, p.held)
		}
	}
	if err := other.CloseLasting(); err != nil { // which changes no generation
		t.Fatal(err)
	}
	p.held.again = time.Time{} // 30 s later
	same("after another owner has ended")
	if err := p.Enforce(enforcing(policy.Rules{}, nil)); err != nil || !strings.Contains(second(), "exit status 1") {
		t.Errorf("without policies: %v\n%s", err, second())
	}
}

// TestSpans: ranges that overlap, touch or contain each other become those that hold the same numbers.
func TestSpans(t *testing.T) {
	for _, c := range []struct {
		ports []policy.Ports
		in    [][2]uint16
	}{
		{[]policy.Ports{{First: 10, Last: 100}, {First: 20, Last: 30}}, [][2]uint16{{10, 100}}},
		{[]policy.Ports{{First: 20, Last: 30}, {First: 10, Last: 25}}, [][2]uint16{{10, 30}}},
		{[]policy.Ports{{First: 1, Last: 9}, {First: 10, Last: 10}, {First: 12, Last: 65535}}, [][2]uint16{{1, 10}, {12, 65535}}},
	} {
		r := policyRules{sets: map[string]policySet{}}
		name := r.ports(c.ports)
		want := elementSet{}
		for _, x := range c.in {
			want[element{key: string(bytesOf(x[0]))}] = true
			if x[1] < 65535 {
				want[element{string(bytesOf(x[1] + 1)), true}] = true
			}
		}
		if got := r.sets[name].elementSet; !maps.Equal(got, want) {
			t.Errorf("%v: %v, want %v", c.ports, got, want)
		}
	}
}

// TestLostByThePodsPort: a connection through a Service is judged by the port that it has at the pod.
func TestLostByThePodsPort(t *testing.T) {
	client, service, server := netip.MustParseAddr("10.1.2.2"), netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.1.1.2")
	pods := []policy.Pod{{Namespace: "shop", Name: "web", Addrs: []netip.Addr{server}}}
	rules := policy.Compile(parsed(t, []string{`{podSelector: {}, ingress: [{ports: [{port: 8080, protocol: TCP}]}]}`}), pods, func(policy.Group) []policy.Member { return nil })
	l := lost{Placed: rules.Place(map[netip.Addr]string{server: "shop/web"})}
	for port, want := range map[uint16]bool{8080: false, 80: true} {
		flow := &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{SrcIP: client.AsSlice(), DstIP: service.AsSlice(), Protocol: 6, SrcPort: 40000, DstPort: 8888 - port},
			Reverse: netlink.IPTuple{SrcIP: server.AsSlice(), DstIP: client.AsSlice(), Protocol: 6, SrcPort: port, DstPort: 40000},
		}
		if got := l.MatchConntrackFlow(flow); got != want {
			t.Errorf("to the pod's port %d: lost %v, want %v", port, got, want)
		}
	}
}
