package nft

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/policy"
	"edgemesh/cni/closing"
)

// Table inet edgemesh-policy holds NetworkPolicy. It is one of its own, so that no rebuild of another can lift a policy, and none of
// its own touches the guard.
//
//	table inet edgemesh-policy {
//		map out4 { type ipv4_addr : verdict }        pod address : jump out-CHAIN; in4, out6, in6
//		set apart-in4 { type ipv4_addr }             pods that are isolated in that direction; apart-out4, …
//		set self4 { type ipv4_addr . ipv4_addr }     each pod twice; self6
//		set GROUP-4 { type ipv4_addr }               members; GROUP-4-ports { type ipv4_addr . inet_proto . inet_service }
//		set blocks-HASH-4 { type ipv4_addr; flags interval }   of an ipBlock; ports-HASH { type inet_service; flags interval }
//		set drops-in4 { type ipv4_addr; dynamic }    dropped packets by pod; drops-out4, …
//		set flows4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; dynamic }   what was dropped within the last minute
//		chain forward { type filter hook forward priority filter
//			ct state established,related accept
//			icmpv6 type 130-136, 143 accept          neighbours and groups, on the bridge
//			ip saddr . ip daddr @self4 accept        a pod to itself through a Service
//			ct state new tcp flags & (syn|ack) != syn jump midstream
//			ip saddr vmap @out4
//			ip daddr vmap @in4
//		}
//		chain midstream { ip saddr @apart-in4 drop; ip daddr @apart-out4 drop }
//		chain in-CHAIN { ip saddr @GROUP-4 tcp dport @ports-HASH counter return; …; goto dropped-in }
//		chain dropped-in { update @drops-in4 { ip daddr counter }; update @flows4 { … }; counter drop }
//	}
//
// A connection that conntrack has forgotten, or that we deleted there because it has lost its right, is taken up again by the first
// packet of either side. The answers of an isolated pod must not do that: the whole connection would pass as theirs (chain midstream).
const (
	policyVersion = 1
	chainMid      = "midstream"
	trialTable    = closing.Table + "-trial" // it stands for an instant, see refused
	flowStays     = time.Minute
	dropsStay     = 24 * time.Hour
	wholeEvery    = 20 * time.Second // less than the repair's period
)

// Policies brings NetworkPolicy into the kernel. Its methods may be called from several goroutines.
type Policies struct {
	log *slog.Logger

	mu         sync.Mutex
	placed     policy.Placed // as in the kernel
	sets       map[string]elements
	whole      time.Time // when sets were last read from the kernel
	generation uint32    // of the kernel's tables, after the last pass that changed nothing or all
	standing   bool
	uncut      bool // connections that have lost their right may be left
	refusal    refusal
}

// refusal is what the kernel refused last. Its policy is looked for once: the search changes the kernel's tables, which wakes the next pass.
type refusal struct {
	want   policy.Placed
	text   string // the kernel's error
	policy string // "" if not found
}

// refusedError is the kernel's of a whole transaction.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// NewPolicies returns Policies.
func NewPolicies(log *slog.Logger) *Policies { return &Policies{log: log} }

// element is one of a set; end is the first behind a range.
type element struct {
	key string
	end bool
}

type elements map[element]bool

// policySet is a set as it is wanted. Those without elements here are the kernel's to fill.
type policySet struct {
	key      nftables.SetDatatype
	interval bool
	stays    time.Duration
	elements
}

// size bounds what rules add.
func (s policySet) size() uint32 {
	if s.stays > 0 {
		return 1024
	}
	return 0
}

// policyRules is all that depends on the policies.
type policyRules struct {
	sets   map[string]policySet
	maps   map[string]map[string]string // address → chain
	chains map[string][]policyRule
}

// policyRule is a rule, and the policy behind it.
type policyRule struct {
	words
	policy string
}

func addressType(v6 bool) nftables.SetDatatype {
	if v6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

var bothVersions = []bool{false, true}

// side is "in" or "out".
func side(d policy.Direction) string {
	return strings.TrimSuffix(closing.Map(d == policy.Egress, false), "4")
}

// chainName is the kernel's name of a chain in one direction: what it matches differs.
func chainName(d policy.Direction, name string) string {
	if name == policy.Closed {
		return closing.Dropped[d]
	}
	return side(d) + "-" + name
}

// rulesOf is what the kernel should hold.
func rulesOf(p policy.Placed) policyRules {
	out := policyRules{sets: map[string]policySet{}, maps: map[string]map[string]string{}, chains: map[string][]policyRule{}}
	for _, v6 := range bothVersions {
		a := addressType(v6)
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			out.maps[closing.Map(d == policy.Egress, v6)] = map[string]string{}
			out.sets["apart-"+closing.Map(d == policy.Egress, v6)] = policySet{key: a, elements: elements{}}
			out.sets["drops-"+closing.Map(d == policy.Egress, v6)] = policySet{key: a, stays: dropsStay}
		}
		out.sets["self"+suffix(v6)] = policySet{key: nftables.MustConcatSetType(a, a), elements: elements{}}
		out.sets["flows"+suffix(v6)] = policySet{key: nftables.MustConcatSetType(a, a, nftables.TypeInetProto, nftables.TypeInetService), stays: flowStays}
	}
	for at, place := range p.At {
		key := string(at.AsSlice())
		out.sets["self"+suffix(at.Is6())].elements[element{key: key + key}] = true
		for d, name := range place.Chains {
			if name == "" {
				continue
			}
			d := policy.Direction(d)
			of := closing.Map(d == policy.Egress, at.Is6())
			out.maps[of][key] = chainName(d, name)
			out.sets["apart-"+of].elements[element{key: key}] = true
			if name != policy.Closed {
				if _, done := out.chains[chainName(d, name)]; !done {
					out.chain(p, d, name)
				}
			}
		}
	}
	return out
}

// chain adds a chain and the sets that it needs.
func (r policyRules) chain(p policy.Placed, d policy.Direction, name string) {
	var all []policyRule
	for _, a := range p.Chains[name].Accepts {
		for _, w := range r.accept(p, d, a) {
			all = append(all, policyRule{append(w, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictReturn}), a.Policy})
		}
	}
	r.chains[chainName(d, name)] = append(all, policyRule{words: goTo(closing.Dropped[d])})
}

// accept is one rule for each protocol and kind of peer.
func (r policyRules) accept(p policy.Placed, d policy.Direction, a policy.Accept) (out []words) {
	peer := func(v6 bool) field {
		if d == policy.Ingress {
			return ip(v6).saddr()
		}
		return ip(v6).daddr()
	}
	var peers []words
	if a.Any {
		peers = append(peers, nil)
	}
	for _, v6 := range bothVersions {
		for _, id := range a.Groups {
			peers = append(peers, rule(isVersion(v6), inSet(r.group(p, id, v6, false), peer(v6))))
		}
		if name := r.blocks(a.Blocks, v6); name != "" {
			peers = append(peers, rule(isVersion(v6), inSet(name, peer(v6))))
		}
		for _, id := range a.Named {
			out = append(out, rule(isVersion(v6), inSet(r.group(p, id, v6, true), peer(v6), l4proto, dport)))
		}
	}
	var ports []words
	if len(a.Ports) == 0 && !a.None {
		ports = append(ports, nil)
	}
	of := map[byte][]policy.Ports{}
	for _, x := range a.Ports {
		of[x.Protocol] = append(of[x.Protocol], x)
	}
	for _, protocol := range slices.Sorted(maps.Keys(of)) {
		w := l4proto.is(protocol)
		if name := r.ports(of[protocol]); name != "" {
			w = rule(w, inSet(name, dport))
		}
		ports = append(ports, w)
	}
	for _, x := range peers {
		for _, y := range ports {
			out = append(out, rule(x, y))
		}
	}
	return out
}

// group is the name of a group's set for one IP version.
func (r policyRules) group(p policy.Placed, id string, v6, ports bool) string {
	name, kind := id+"-"+suffix(v6), addressType(v6)
	if ports {
		name, kind = name+"-ports", nftables.MustConcatSetType(kind, nftables.TypeInetProto, nftables.TypeInetService)
	}
	if _, done := r.sets[name]; done {
		return name
	}
	all := elements{}
	for _, m := range p.Sets[id] {
		if m.Addr.Is6() == v6 {
			key := m.Addr.AsSlice()
			if ports {
				key = append(key, m.Protocol, 0, 0, 0, byte(m.Port>>8), byte(m.Port), 0, 0)
			}
			all[element{key: string(key)}] = true
		}
	}
	r.sets[name] = policySet{key: kind, elements: all}
	return name
}

// blocks is the name of a set of these prefixes, "" where there are none.
func (r policyRules) blocks(all []netip.Prefix, v6 bool) string {
	var spans [][2][]byte
	for _, b := range all {
		if b.Addr().Is6() != v6 {
			continue
		}
		last := b.Addr().AsSlice()
		for bit := b.Bits(); bit < len(last)*8; bit++ {
			last[bit/8] |= 1 << (7 - bit%8)
		}
		spans = append(spans, [2][]byte{b.Addr().AsSlice(), last})
	}
	return r.spans("blocks", suffix(v6), addressType(v6), spans)
}

// ports is the name of a set of these ports, "" for all.
func (r policyRules) ports(all []policy.Ports) string {
	var spans [][2][]byte
	for _, x := range all {
		if x.First == 0 && x.Last == 65535 {
			return ""
		}
		spans = append(spans, [2][]byte{bytesOf(x.First), bytesOf(x.Last)})
	}
	return r.spans("ports", "", nftables.TypeInetService, spans)
}

// spans is the name of a set of ranges, which may overlap; "" where there are none.
func (r policyRules) spans(kind, version string, key nftables.SetDatatype, all [][2][]byte) string {
	if len(all) == 0 {
		return ""
	}
	slices.SortFunc(all, func(a, b [2][]byte) int { return bytes.Compare(a[0], b[0]) })
	out, hash := elements{}, sha256.New()
	for i := 0; i < len(all); {
		first, last := all[i][0], all[i][1]
		for i++; i < len(all) && (bytes.Compare(all[i][0], last) <= 0 || bytes.Equal(all[i][0], after(last))); i++ {
			if bytes.Compare(all[i][1], last) > 0 {
				last = all[i][1]
			}
		}
		out[element{key: string(first)}] = true
		if end := after(last); end != nil {
			out[element{string(end), true}] = true
		}
		hash.Write(slices.Concat(first, last))
	}
	name := kind + "-" + hex.EncodeToString(hash.Sum(nil)[:8])
	if version != "" {
		name += "-" + version
	}
	r.sets[name] = policySet{key: key, interval: true, elements: out}
	return name
}

// after is the number that follows, nil after the highest.
func after(n []byte) []byte {
	out := slices.Clone(n)
	for i := len(out) - 1; i >= 0; i-- {
		if out[i]++; out[i] != 0 {
			return out
		}
	}
	return nil
}

// frame are the chains that do not depend on policies.
func frame() []chain {
	base := chain{name: chainForward, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: *nftables.ChainPriorityFilter}
	base.add(ctState.and(bytesOf(host(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED))).isNot(host(0)), accept)
	icmp6 := rule(isVersion(true), l4proto.is(byte(unix.IPPROTO_ICMPV6)))
	base.add(icmp6, icmpType.into(1), words{&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{130}, ToData: []byte{136}}}, accept)
	base.add(icmp6, icmpType.is(byte(143)), accept)
	mid := chain{name: chainMid}
	for _, v6 := range bothVersions {
		base.add(isVersion(v6), inSet("self"+suffix(v6), ip(v6).addrs()), accept)
		mid.add(isVersion(v6), inSet("apart-"+closing.Map(false, v6), ip(v6).saddr()), drop)
		mid.add(isVersion(v6), inSet("apart-"+closing.Map(true, v6), ip(v6).daddr()), drop)
	}
	const syn, ack = 2, 16
	base.add(l4proto.is(byte(unix.IPPROTO_TCP)), ctState.and(bytesOf(host(expr.CtStateBitNEW))).isNot(host(0)), tcpFlags.and([]byte{syn | ack}).isNot(byte(syn)), jump(chainMid))
	out := []chain{mid}
	for _, d := range []policy.Direction{policy.Egress, policy.Ingress} {
		dropped := chain{name: closing.Dropped[d]}
		for _, v6 := range bothVersions {
			h, own := ip(v6), ip(v6).saddr()
			if d == policy.Ingress {
				own = h.daddr()
			}
			base.add(isVersion(v6), own.vmap(closing.Map(d == policy.Egress, v6)))
			icmp := byte(unix.IPPROTO_ICMP)
			if v6 {
				icmp = unix.IPPROTO_ICMPV6
			}
			flow := func(port field) words {
				return count("flows"+suffix(v6), flowStays, h.saddr(), h.daddr(), l4proto, port)
			}
			dropped.add(isVersion(v6), count("drops-"+closing.Map(d == policy.Egress, v6), dropsStay, own))
			dropped.add(isVersion(v6), l4proto.is(icmp), flow(icmpCoded))
			dropped.add(isVersion(v6), l4proto.isNot(icmp), flow(dport))
		}
		dropped.add(drop)
		out = append(out, dropped)
	}
	return append(out, base)
}

// framed is the number of rules of each chain of the frame, and what the first rule of the base chain carries.
func framed() (rules map[string]int, print []byte) {
	rules = map[string]int{}
	for _, f := range frame() {
		rules[f.name] = len(f.rules)
	}
	return rules, fingerprint(policyVersion, rules)
}

// count counts packets by the concatenation of fields.
func count(set string, stays time.Duration, fields ...field) words {
	w := note(set, stays, fields...)
	w[len(w)-1].(*expr.Dynset).Exprs = []expr.Any{&expr.Counter{}}
	return w
}

// Standing reports whether rules are in force, so that new pods can be closed.
func (p *Policies) Standing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.standing
}

// Missing returns the reason why this kernel can hold no policies, "" if it can.
func (*Policies) Missing() string {
	if _, err := conn().ListTablesOfFamily(nftables.TableFamilyINet); err != nil {
		return fmt.Sprintf("the kernel has no nf_tables to enforce NetworkPolicy with (modprobe nf_tables): %v", err)
	}
	return ""
}

// Enforce brings into force what place returns, in one transaction; the former rules stay where the kernel refuses it, and the error
// names the policy. It calls place after it has read which pods are closed. Connections that lose their right are Cut's.
func (p *Policies) Enforce(place func() (policy.Placed, error)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var want policy.Placed
	var err error
	for range 3 { // the plugin, or another program, may change the table between a look and the change
		if err = p.enforce(place, &want); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
			break
		}
		p.sets = nil
	}
	if err == nil {
		p.refusal = refusal{}
		return nil
	}
	p.sets, p.generation = nil, 0
	if errors.As(err, new(refusedError)) {
		if p.refusal.text != err.Error() || !reflect.DeepEqual(p.refusal.want, want) {
			p.refusal = refusal{want, err.Error(), refused(want)}
		}
		if by := p.refusal.policy; by != "" {
			err = fmt.Errorf("NetworkPolicy %s: %w", by, err)
		}
	}
	return err
}

func (p *Policies) enforce(place func() (policy.Placed, error), want *policy.Placed) error {
	now, err := generation()
	if err != nil {
		why := p.Missing()
		if why == "" { // it answers by now: the rules stand as they did
			return err
		}
		p.standing = false
		if *want, err = place(); err == nil && len(want.Namespaces) > 0 {
			err = errors.New(why)
		}
		return err
	}
	if now == p.generation {
		if *want, err = place(); err != nil || reflect.DeepEqual(*want, p.placed) {
			return err
		}
	}
	whole := time.Since(p.whole) >= wholeEvery
	if whole { // another program may have changed members
		p.sets = nil
	}
	have, err := p.read()
	if err != nil {
		return err
	}
	if whole {
		p.whole = time.Now()
	}
	p.standing = have.exists
	if *want, err = place(); err != nil {
		return err
	}
	rules, changes := rulesOf(*want), 0
	c := bulk()
	if len(want.Namespaces) > 0 {
		changes, err = have.change(c, policyTable, rules)
	} else if have.exists {
		c.DelTable(policyTable)
		changes++
	}
	if err == nil && changes > 0 {
		err = c.Flush()
	}
	if err != nil {
		return refusedError{fmt.Errorf("nftables table %s: %w", closing.Table, err)}
	}
	p.uncut = p.uncut || have.opens(rules) || narrows(p.placed, *want)
	p.placed, p.sets, p.standing = *want, map[string]elements{}, len(want.Namespaces) > 0
	for name, s := range rules.sets {
		p.sets[name] = s.elements
	}
	if p.generation = now; changes > 0 || !whole {
		p.generation = 0 // the next pass looks whether only we changed something
	}
	return nil
}

// bulk is a connection for transactions of some MB, and as many answers.
func bulk() *nftables.Conn {
	c, _ := nftables.New(nftables.WithSockOptions(func(s *mdnetlink.Conn) error {
		return errors.Join(s.SetWriteBuffer(64<<20), s.SetReadBuffer(64<<20))
	}))
	return c
}

// narrows reports whether now lets less through than before, or other pods have addresses. A chain's name stands for its rules.
func narrows(before, now policy.Placed) bool {
	for a, place := range now.At {
		was := before.At[a]
		for d, chain := range place.Chains {
			if was.Pod != place.Pod || chain != "" && chain != was.Chains[d] && was.Chains[d] != policy.Closed {
				return true
			}
		}
	}
	for id, was := range before.Sets {
		is, used := now.Sets[id]
		if !used || slices.Equal(was, is) {
			continue // where it is no longer used, chains differ
		}
		left := make(map[policy.Member]bool, len(is))
		for _, m := range is {
			left[m] = true
		}
		if slices.ContainsFunc(was, func(m policy.Member) bool { return !left[m] }) {
			return true
		}
	}
	return false
}

// opens reports whether pods are open that should not be.
func (have policyState) opens(want policyRules) bool {
	for name, places := range want.maps {
		for key := range places {
			if have.maps[name][key] == "" || !have.framed {
				return true
			}
		}
	}
	return false
}

// Cut deletes connections that would not be let through now, if a change since the last time without an error may have left such ones.
func (p *Policies) Cut() error {
	p.mu.Lock()
	uncut, placed := p.uncut, p.placed
	p.uncut = false
	p.mu.Unlock()
	if !uncut || len(placed.At) == 0 {
		return nil
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	own := map[netip.Addr]bool{} // what the node itself sends and receives does not pass FORWARD
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			own[ip.Unmap()] = true
		}
	}
	var deleted uint
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		n, e := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, lost{placed, own})
		deleted, err = deleted+n, errors.Join(err, e)
	}
	if deleted > 0 {
		p.log.Info("connections that NetworkPolicy no longer allows are cut", "number", deleted)
	}
	if err == nil {
		return nil
	}
	p.mu.Lock()
	p.uncut = true
	p.mu.Unlock()
	return fmt.Errorf("conntrack: %w", err)
}

// lost matches connections that rules do not let through.
type lost struct {
	policy.Placed
	own map[netip.Addr]bool
}

func (l lost) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	src, _ := netip.AddrFromSlice(c.Forward.SrcIP)
	dst, _ := netip.AddrFromSlice(c.Reverse.SrcIP) // as translated
	src, dst = src.Unmap(), dst.Unmap()
	if l.own[src] || l.own[dst] {
		return false
	}
	pass, _, _ := l.Verdict(policy.Packet{Src: src, Dst: dst, Protocol: c.Forward.Protocol, Port: c.Reverse.SrcPort})
	return !pass
}

var policyTable = &nftables.Table{Name: closing.Table, Family: nftables.TableFamilyINet} //nolint:gochecknoglobals // a constant

// policyState is what the kernel holds.
type policyState struct {
	exists, framed bool
	sets           map[string]elements
	maps           map[string]map[string]string
	chains         map[string]int // number of rules
}

// read reads the table, except for elements that are known.
func (p *Policies) read() (policyState, error) {
	out := policyState{sets: map[string]elements{}, maps: map[string]map[string]string{}, chains: map[string]int{}}
	c := conn()
	table, err := find(c, closing.Table)
	if err != nil || table == nil {
		return out, err
	}
	out.exists, out.framed = true, true
	sets, err := c.GetSets(table)
	if err != nil {
		return out, fmt.Errorf("list nftables sets: %w", err)
	}
	for _, s := range sets {
		known, ok := p.sets[s.Name]
		if !s.IsMap && ok || s.Dynamic {
			out.sets[s.Name] = known
			continue
		}
		all, err := c.GetSetElements(s)
		if err != nil {
			return out, fmt.Errorf("list nftables set %s: %w", s.Name, err)
		}
		if s.IsMap {
			out.maps[s.Name] = map[string]string{}
			for _, e := range all {
				out.maps[s.Name][string(e.Key)] = verdictChain(e.Val)
			}
			continue
		}
		out.sets[s.Name] = elements{}
		for _, e := range all {
			out.sets[s.Name][element{string(e.Key), e.IntervalEnd}] = true
		}
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return out, fmt.Errorf("list nftables chains: %w", err)
	}
	fixed, print := framed()
	for _, x := range chains {
		if x.Table.Name != closing.Table {
			continue
		}
		rules, err := c.GetRules(table, x)
		if err != nil {
			return out, fmt.Errorf("list nftables rules: %w", err)
		}
		if n, ok := fixed[x.Name]; !ok {
			out.chains[x.Name] = len(rules)
		} else if delete(fixed, x.Name); n != len(rules) || x.Name == chainForward && !bytes.Equal(rules[0].UserData, print) {
			out.framed = false
		}
	}
	out.framed = out.framed && len(fixed) == 0
	return out, nil
}

// verdictChain is the chain of a map's element (NFTA_DATA_VERDICT's content).
func verdictChain(b []byte) string {
	attrs, _ := nl.ParseRouteAttr(b)
	for _, a := range attrs {
		if a.Attr.Type&^unix.NLA_F_NESTED == unix.NFTA_VERDICT_CHAIN {
			return nl.BytesToString(a.Value)
		}
	}
	return ""
}

// change adds what differs to a transaction, and returns how much that is. A table without our frame is made again.
func (have policyState) change(c *nftables.Conn, table *nftables.Table, want policyRules) (n int, err error) {
	if have.exists && !have.framed {
		c.DelTable(table)
		have = policyState{}
	}
	if !have.exists {
		c.AddTable(table)
		n++
	}
	for _, name := range slices.Sorted(maps.Keys(want.sets)) {
		s := want.sets[name]
		before, exists := have.sets[name]
		if !exists {
			n++
			if err := c.AddSet(&nftables.Set{Table: table, Name: name, KeyType: s.key, Interval: s.interval,
				Dynamic: s.stays > 0, HasTimeout: s.stays > 0, Timeout: s.stays, Size: s.size()}, nil); err != nil {
				return n, fmt.Errorf("nftables set %s: %w", name, err)
			}
		}
		if s.stays > 0 {
			continue
		}
		m, err := changeElements(c, table, name, before, s.elements)
		if n += m; err != nil {
			return n, err
		}
	}
	if !have.framed {
		for _, f := range frame() {
			c.AddChain(f.in(table))
		}
		for name := range want.maps {
			if err := c.AddSet(&nftables.Set{Table: table, Name: name, IsMap: true, KeyType: addressType(strings.HasSuffix(name, "6")), DataType: nftables.TypeVerdict}, nil); err != nil {
				return n, fmt.Errorf("nftables map %s: %w", name, err)
			}
		}
		_, print := framed()
		for _, f := range frame() {
			for i, w := range f.rules {
				r := &nftables.Rule{Table: table, Chain: f.in(table), Exprs: w}
				if i == 0 && f.name == chainForward {
					r.UserData = print
				}
				c.AddRule(r)
			}
		}
	}
	for name, rules := range want.chains {
		of := &nftables.Chain{Name: name, Table: table}
		if have.chains[name] == len(rules) {
			continue
		}
		n++
		if _, exists := have.chains[name]; exists {
			c.FlushChain(of)
		} else {
			c.AddChain(of)
		}
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: of, Exprs: r.words, UserData: comment(r.policy)})
		}
	}
	for name, places := range want.maps {
		m, err := changePlaces(c, table, name, have.maps[name], places)
		if n += m; err != nil {
			return n, err
		}
	}
	for name := range have.chains {
		if _, wanted := want.chains[name]; !wanted {
			n++
			c.FlushChain(&nftables.Chain{Name: name, Table: table}) // Linux before 4.15 deletes empty ones only
			c.DelChain(&nftables.Chain{Name: name, Table: table})
		}
	}
	for name := range have.sets {
		if _, wanted := want.sets[name]; !wanted {
			n++
			c.DelSet(&nftables.Set{Table: table, Name: name})
		}
	}
	return n, nil
}

// comment is a rule's, as nft prints it; a longer one is cut.
func comment(policy string) []byte {
	if policy == "" {
		return nil
	}
	return userdata.AppendString(nil, userdata.TypeComment, policy[:min(len(policy), 120)])
}

// changeElements makes a set hold want.
func changeElements(c *nftables.Conn, table *nftables.Table, set string, have, want elements) (n int, err error) {
	of := &nftables.Set{Table: table, Name: set}
	list := func(all, but elements, do func(*nftables.Set, []nftables.SetElement) error) {
		var out []nftables.SetElement
		for e := range all {
			if !but[e] {
				out = append(out, nftables.SetElement{Key: []byte(e.key), IntervalEnd: e.end})
			}
		}
		slices.SortFunc(out, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
		n += len(out)
		for part := range slices.Chunk(out, batch) {
			err = errors.Join(err, do(of, part))
		}
	}
	list(have, want, c.SetDeleteElements)
	list(want, have, c.SetAddElements)
	return n, err
}

// changePlaces makes a map hold want. An element's chain cannot be changed: it is deleted and added.
func changePlaces(c *nftables.Conn, table *nftables.Table, name string, have, want map[string]string) (n int, err error) {
	of := &nftables.Set{Table: table, Name: name, IsMap: true}
	var gone, come []nftables.SetElement
	for key, chain := range have {
		if want[key] != chain {
			gone = append(gone, nftables.SetElement{Key: []byte(key)})
		}
	}
	for key, chain := range want {
		if have[key] != chain {
			come = append(come, nftables.SetElement{Key: []byte(key), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}})
		}
	}
	for part := range slices.Chunk(gone, batch) {
		err = errors.Join(err, c.SetDeleteElements(of, part))
	}
	for part := range slices.Chunk(come, batch) {
		err = errors.Join(err, c.SetAddElements(of, part))
	}
	return len(gone) + len(come), err
}

// generation is the kernel's count of transactions.
func generation() (uint32, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	all, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil || len(all) == 0 {
		return 0, errors.Join(errors.New("nftables generation"), err)
	}
	attrs, err := nl.ParseRouteAttr(all[0][nl.SizeofNfgenmsg:])
	for _, a := range attrs {
		if a.Attr.Type == unix.NFTA_GEN_ID {
			return binaryutil.BigEndian.Uint32(a.Value), nil
		}
	}
	return 0, errors.Join(errors.New("nftables generation: no ID"), err)
}

// refused finds the policy whose rules the kernel refuses, by making those of each alone, in a table without hooks.
func refused(p policy.Placed) string {
	trial := &nftables.Table{Name: trialTable, Family: nftables.TableFamilyINet}
	_ = removeTrial()
	tried := map[string]bool{}
	for _, place := range p.At {
		for d, name := range place.Chains {
			d := policy.Direction(d)
			if tried[chainName(d, name)] {
				continue
			}
			tried[chainName(d, name)] = true
			for _, a := range p.Chains[name].Accepts {
				one := policyRules{sets: map[string]policySet{}, chains: map[string][]policyRule{}}
				for _, w := range one.accept(p, d, a) {
					one.chains["trial"] = append(one.chains["trial"], policyRule{words: w})
				}
				c := bulk()
				_, err := policyState{framed: true}.change(c, trial, one)
				if errors.Join(err, c.Flush()) != nil {
					return a.Policy
				}
				c.DelTable(trial)
				_ = c.Flush() // it has just been made
			}
		}
	}
	return ""
}

// removeTrial deletes what a kill left of a search.
func removeTrial() error {
	c := conn()
	trial, err := find(c, trialTable)
	if trial == nil || err != nil {
		return nil
	}
	c.DelTable(trial)
	return c.Flush()
}

// PolicyCounts are packets that policies passed and dropped.
type PolicyCounts struct {
	Hits  map[string]map[string]uint64 // first packets of connections, by chain and policy
	Pods  [2]map[netip.Addr]uint64     // dropped, by Direction and pod
	Total [2]uint64                    // dropped, by Direction
	Flows map[policy.Packet]uint64     // dropped within the last minute; what has no ports has ICMP's type and code
}

// HitsOf are those of a pod's chain in one direction.
func (c PolicyCounts) HitsOf(d policy.Direction, chain string) map[string]uint64 {
	return c.Hits[chainName(d, chain)]
}

// Counts reads what was counted; only Total unless all.
func (p *Policies) Counts(all bool) (PolicyCounts, error) {
	out := PolicyCounts{Hits: map[string]map[string]uint64{}, Flows: map[policy.Packet]uint64{}}
	if !p.Standing() {
		return out, nil
	}
	c := conn()
	for d, name := range closing.Dropped {
		rules, err := c.GetRules(policyTable, &nftables.Chain{Name: name})
		if err != nil {
			return out, fmt.Errorf("list nftables rules: %w", err)
		}
		if len(rules) == 0 {
			return out, fmt.Errorf("nftables table %s was deleted or flushed by another program; it is about to be repaired", closing.Table)
		}
		out.Total[d] = counted(rules[len(rules)-1])
	}
	if !all {
		return out, nil
	}
	for _, v6 := range bothVersions {
		for d := range out.Pods {
			list, err := c.GetSetElements(&nftables.Set{Table: policyTable, Name: "drops-" + closing.Map(d == int(policy.Egress), v6)})
			if err != nil {
				return out, fmt.Errorf("list nftables set: %w", err)
			}
			if out.Pods[d] == nil {
				out.Pods[d] = map[netip.Addr]uint64{}
			}
			for _, e := range list {
				if a, ok := netip.AddrFromSlice(e.Key); ok && e.Counter != nil {
					out.Pods[d][a] = e.Counter.Packets
				}
			}
		}
		list, err := c.GetSetElements(&nftables.Set{Table: policyTable, Name: "flows" + suffix(v6)})
		if err != nil {
			return out, fmt.Errorf("list nftables set: %w", err)
		}
		n := int(addrSize(v6))
		for _, e := range list {
			if len(e.Key) != 2*n+8 || e.Counter == nil {
				continue
			}
			src, _ := netip.AddrFromSlice(e.Key[:n])
			dst, _ := netip.AddrFromSlice(e.Key[n : 2*n])
			out.Flows[policy.Packet{Src: src, Dst: dst, Protocol: e.Key[2*n], Port: binaryutil.BigEndian.Uint16(e.Key[2*n+4 : 2*n+6])}] = e.Counter.Packets
		}
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return out, fmt.Errorf("list nftables chains: %w", err)
	}
	fixed, _ := framed()
	for _, x := range chains {
		if x.Table.Name != closing.Table || fixed[x.Name] > 0 { // the base chain's first rule carries no comment
			continue
		}
		rules, err := c.GetRules(policyTable, x)
		if err != nil {
			return out, fmt.Errorf("list nftables rules: %w", err)
		}
		hits := map[string]uint64{}
		for _, r := range rules {
			if by, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok {
				hits[by] += counted(r)
			}
		}
		out.Hits[x.Name] = hits
	}
	return out, nil
}

// counted is how many packets a rule has counted.
func counted(r *nftables.Rule) uint64 {
	for _, e := range r.Exprs {
		if c, ok := e.(*expr.Counter); ok {
			return c.Packets
		}
	}
	return 0
}
