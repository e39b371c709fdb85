package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/policy"
	"edgemesh/cni/closing"
)

// Table inet edgemesh-policy holds NetworkPolicy. It is one of its own, so that no rebuild of another can lift a policy, and none of
// its own touches the guard. Table edgemesh-policy-held has the same, see held.
//
//	table inet edgemesh-policy {
//		map out4 { type ipv4_addr : verdict }        pod address : jump out-CHAIN; in4, out6, in6
//		set apart-in4 { type ipv4_addr }             pods that are isolated in that direction; apart-out4, …
//		set self4 { type ipv4_addr . ipv4_addr }     each pod twice; self6
//		set GROUP-4 { type ipv4_addr }               members; GROUP-4-ports { type ipv4_addr . inet_proto . inet_service }
//		set blocks-HASH-4 { type ipv4_addr; flags interval }   of an ipBlock; ports-HASH { type inet_service; flags interval }
//		set drops-in4 { type ipv4_addr; dynamic }    dropped packets by pod; drops-out4, …
//		set flows4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; dynamic }   what was dropped within the last minute
//		set cut4 { type ipv4_addr . inet_service . ipv4_addr . inet_service; dynamic }   answers of UDP conversations that were cut; cut6
//		chain forward { type filter hook forward priority filter
//			ct state established,related accept
//			udp: ip saddr . sport . ip daddr . dport @cut4 goto dropped-out
//			icmpv6 type 135-136 code 0 ip6 hoplimit 255 accept   neighbours on the bridge; iifname edgemesh-br 133-134, ip6 saddr :: drop
//			icmpv6 type 130-132, 143 ip6 hoplimit 1 ip6 saddr fe80::/10 or :: ip6 daddr ff00::/8 accept   groups on the bridge
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
// packet of either side. The answers of an isolated pod must not do that: the whole connection would pass as theirs (chain midstream). Of
// UDP nothing says who answers, so those of what we cut are noted, and dropped for cutStays, unless rules let the conversation pass again.
const (
	policyVersion = 4
	chainMid      = "midstream"
	trialTable    = closing.Table + "-trial" // it stands for an instant, see refused
	flowStays     = time.Minute
	dropsStay     = 24 * time.Hour
	cutStays      = 3 * time.Minute  // longer than conntrack keeps a conversation that is silent
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
	changed    bool // what was cut may have its right again
	refusal    refusal
	held       held
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
func NewPolicies(log *slog.Logger) *Policies { return &Policies{log: log, held: held{log: log}} }

// Standing reports whether rules are in force, so that new pods can be closed.
func (p *Policies) Standing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.standing
}

// Gone reports whether another program has deleted the table. It is one request where nothing else has changed either.
func (p *Policies) Gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.standing {
		return false
	}
	table, err := find(conn(), closing.Table)
	return table == nil && err == nil
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
		if *want, err = place(); err != nil || reflect.DeepEqual(*want, p.placed) && !(p.standing && p.held.missing()) {
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
	if len(want.Namespaces) > 0 {
		p.held.hold(rules)
	} else {
		p.held.drop()
	}
	p.changed = p.changed || changes > 0
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
	c, _ := nftables.New(nftables.WithSockOptions(bigBuffers))
	return c
}

func bigBuffers(s *mdnetlink.Conn) error {
	return errors.Join(s.SetWriteBuffer(64<<20), s.SetReadBuffer(64<<20))
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

// Cut deletes connections that would not be let through now, if a change since the last time without an error may have left such ones,
// and lets answers pass of conversations that have their right again.
func (p *Policies) Cut() error {
	p.mu.Lock()
	uncut, changed, placed := p.uncut, p.changed, p.placed
	p.uncut, p.changed = false, false
	p.mu.Unlock()
	if len(placed.At) == 0 {
		return nil
	}
	var err error
	if changed {
		err = release(placed)
	}
	if uncut {
		err = errors.Join(err, p.cut(placed))
	}
	if err == nil {
		return nil
	}
	p.mu.Lock()
	p.uncut, p.changed = p.uncut || uncut, p.changed || changed
	p.mu.Unlock()
	return err
}

// release forgets the answers of UDP conversations that may continue.
func release(placed policy.Placed) error {
	for _, v6 := range bothVersions {
		set, n := &nftables.Set{Table: policyTable, Name: "cut" + suffix(v6)}, int(addrSize(v6))
		all, err := conn().GetSetElements(set)
		if err != nil {
			return fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		for _, e := range all {
			if len(e.Key) != 2*n+8 {
				continue
			}
			server, _ := netip.AddrFromSlice(e.Key[:n])
			client, _ := netip.AddrFromSlice(e.Key[n+4 : 2*n+4])
			port := binaryutil.BigEndian.Uint16(e.Key[n : n+2])
			if pass, _, _ := placed.Verdict(policy.Packet{Src: client, Dst: server, Protocol: unix.IPPROTO_UDP, Port: port}); !pass {
				continue
			}
			c := conn()
			if err = errors.Join(c.SetDeleteElements(set, []nftables.SetElement{{Key: e.Key}}), c.Flush()); err != nil && !errors.Is(err, unix.ENOENT) { // its time may have ended
				return fmt.Errorf("nftables set %s: %w", set.Name, err)
			}
		}
	}
	return nil
}

// cut deletes connections that rules do not let through.
func (p *Policies) cut(placed policy.Placed) error {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	own := map[netip.Addr]bool{} // what the node itself sends and receives does not pass FORWARD
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			own[ip.Unmap()] = true
		}
	}
	var deleted uint
	for _, v6 := range bothVersions {
		l, family := lost{placed, own}, netlink.InetFamily(unix.AF_INET)
		if v6 {
			family = unix.AF_INET6
		}
		err = errors.Join(err, l.note(family, v6))
		n, e := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, l)
		deleted, err = deleted+n, errors.Join(err, e)
	}
	if deleted > 0 {
		p.log.Info("connections that NetworkPolicy no longer allows are cut", "number", deleted)
	}
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	return nil
}

// lost matches connections that rules do not let through.
type lost struct {
	policy.Placed
	own map[netip.Addr]bool
}

// answers collects those of UDP conversations that match, as elements of the set cut4 or cut6; it matches none for deletion.
type answers struct {
	lost
	found *[]nftables.SetElement
}

func (a answers) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	// Where both ports are one, so look the packets of a conversation that the answering pod begins itself.
	if r := c.Reverse; c.Forward.Protocol == unix.IPPROTO_UDP && r.SrcPort != r.DstPort && a.lost.MatchConntrackFlow(c) {
		key := append(slices.Clone(r.SrcIP), byte(r.SrcPort>>8), byte(r.SrcPort), 0, 0)
		*a.found = append(*a.found, nftables.SetElement{Key: append(append(key, r.DstIP...), byte(r.DstPort>>8), byte(r.DstPort), 0, 0)})
	}
	return false
}

// note has the answers of UDP conversations dropped that are about to be deleted.
func (l lost) note(family netlink.InetFamily, v6 bool) error {
	var all []nftables.SetElement
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, answers{l, &all}); err != nil {
		return err
	}
	for part := range slices.Chunk(all, batch) {
		c := bulk()
		err := c.SetAddElements(&nftables.Set{Table: policyTable, Name: "cut" + suffix(v6), HasTimeout: true}, part)
		if err = errors.Join(err, c.Flush()); errors.Is(err, unix.ENFILE) {
			return nil // the set is full: the rest is deleted all the same
		} else if err != nil {
			return err
		}
	}
	return nil
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
