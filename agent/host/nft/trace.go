package nft

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/closing"
)

// For as long as a trace lasts there is one more table. It sees marked packets only: it has the kernel report what each rule
// does with them, and drops them itself where they would leave, so that no host ever receives one. Its other chains are empty.
// The trace shows which of them a packet passed. So it is known where a packet was lost that no rule of nftables dropped:
// legacy iptables stands at fixed priorities between these chains.
//
//	table inet edgemesh-probe {
//		chain PREROUTING_-2147483647 { type filter hook prerouting priority -2147483647
//			meta l4proto tcp @th,32,56 MARK meta nftrace set 1           TCP: sequence number and acknowledgement
//			meta l4proto != tcp @th,64,56 MARK meta nftrace set 1        UDP, ICMP: payload
//		}
//		chain PREROUTING_-299 { type filter hook prerouting priority -299 }
//		…                                                                  see stops
//		chain POSTROUTING_2147483646 { type filter hook postrouting priority 2147483646
//			the same packets: drop
//		}
//		chain INPUT_2147483646 { type filter hook input priority 2147483646
//			the same packets: drop
//		}
//	}
const traceTable = "edgemesh-probe"

// Mark is what all packets of one trace carry; behind it each has its own number, one byte. Where, TCPMark and PayloadMark say.
type Mark [7]byte

// Where a packet carries the mark, in bytes from its transport header.
const (
	TCPMark     = 4 // sequence number and acknowledgement (RFC 9293, section 3.1)
	PayloadMark = 8 // behind the header of UDP or ICMP
)

// stop is a place that a packet passes. iptables is the table of legacy iptables between it and the stop before.
type stop struct {
	hook     string
	hooked   *nftables.ChainHook
	iptables string
	priority nftables.ChainPriority
}

var ( // in the order in which packets pass
	entry  = []stop{{"PREROUTING", nftables.ChainHookPrerouting, "", firstPriority}, {"PREROUTING", nftables.ChainHookPrerouting, "raw", -299}, {"PREROUTING", nftables.ChainHookPrerouting, "mangle", -149}, {"PREROUTING", nftables.ChainHookPrerouting, "", lastPriority}}
	onward = slices.Concat(entry, []stop{{"FORWARD", nftables.ChainHookForward, "", firstPriority}, {"FORWARD", nftables.ChainHookForward, "mangle", -149}, {"FORWARD", nftables.ChainHookForward, "filter", 1}, {"FORWARD", nftables.ChainHookForward, "security", 51}, {"POSTROUTING", nftables.ChainHookPostrouting, "mangle", -149}, {"POSTROUTING", nftables.ChainHookPostrouting, "", lastPriority}})
	inward = slices.Concat(entry, []stop{{"INPUT", nftables.ChainHookInput, "", firstPriority}, {"INPUT", nftables.ChainHookInput, "mangle", -149}, {"INPUT", nftables.ChainHookInput, "filter", 1}, {"INPUT", nftables.ChainHookInput, "security", 51}, {"INPUT", nftables.ChainHookInput, "", lastPriority}})
)

func (s stop) chain() string { return fmt.Sprintf("%s_%d", s.hook, s.priority) }

// Fate is what became of a packet.
type Fate struct {
	Passed bool // netfilter let it through
	Rule   Rule // that dropped it
	// Where a packet was lost that no rule of nftables dropped: the hook, and the table of legacy iptables whose place this
	// is; "" for none. Both are "" where it was lost in routing.
	Hook, Table string
	Behind      string // the chain of ours that it passed last, "" for none
}

// Rule is one of nftables', iptables-nft's included.
type Rule struct {
	Family, Table, Chain string // Chain "" for none
	Handle               uint64
	Number               int // its place in the chain, from 0; negative for the chain's policy
}

// Trace follows packets through netfilter that send sends, n in all. They go to this node itself if input, or else are forwarded.
// It takes some 0.1 s, traceWait more if some packet is lost unseen, and traceMost at most. The error wraps unix.EOPNOTSUPP where the kernel
// cannot trace, ErrTaken where another program has our table's name.
func Trace(ctx context.Context, n int, input bool, send func(Mark) error) ([]Fate, error) {
	stops := onward
	if input {
		stops = inward
	}
	if Missing() != "" {
		return nil, unix.EOPNOTSUPP
	}
	var m Mark
	_, _ = rand.Read(m[:]) // it never fails
	t := tableOf(m, stops)
	for _, step := range []func() error{t.check, func() error { return t.make(nil) }} {
		if err := step(); err != nil { // a table that is not ours gets no chain of ours
			return nil, err
		}
	}
	defer func() { _ = t.remove() }() // the next trace finds what stays, and removes it
	l, err := newListener(m, n, stops)
	if err != nil {
		return nil, err
	}
	defer l.socket.Close()
	if err := send(m); err != nil {
		return nil, err
	}
	if err := l.listen(ctx); err != nil {
		return nil, err
	}
	return l.fates(), nil
}

// tableOf is the table for packets with a mark, which ends at the last stop, or where packets end that a rule redirects.
func tableOf(m Mark, stops []stop) table {
	isTCP, notTCP := l4proto.is(byte(unix.IPPROTO_TCP)), l4proto.isNot(byte(unix.IPPROTO_TCP))
	inTCP := payload(expr.PayloadBaseTransportHeader, TCPMark, uint32(len(m))).is(m[:])
	inPayload := payload(expr.PayloadBaseTransportHeader, PayloadMark, uint32(len(m))).is(m[:])
	trace := words{&expr.Immediate{Register: 1, Data: []byte{1}}, &expr.Meta{Key: expr.MetaKeyNFTRACE, Register: 1, SourceRegister: true}}
	out := table{name: traceTable}
	end := func(s []stop) stop { return s[len(s)-1] }
	for i, s := range append(slices.Clip(stops), end(onward), end(inward)) { // a rule may redirect packets to the other end
		if i >= len(stops) && s == end(stops) {
			continue
		}
		c := chain{name: s.chain(), kind: nftables.ChainTypeFilter, hook: s.hooked, priority: s.priority}
		var does words
		switch {
		case i == 0:
			does = trace
		case i >= len(stops)-1:
			does = drop
		}
		if does != nil {
			c.add(isTCP, inTCP, does)
			c.add(notTCP, inPayload, does)
		}
		out.chains, out.marks = append(out.chains, c), append(out.marks, c.name)
	}
	return out
}

// traceWait is how long a trace waits for more reports, and traceBuffer how many bytes of them may wait.
var traceWait = unix.Timeval{Usec: 300_000} //nolint:gochecknoglobals // a constant

// traceMost is how long it takes at most: while another program traces, its reports end the wait for more of them.
const (
	traceMost   = time.Second
	traceBuffer = 4 << 20
)

// What is read of a report (linux/netlink.h, linux/netfilter.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h).
const (
	sizeofGenmsg  = 4      // struct nfgenmsg, before the attributes
	typeMask      = 0x3fff // NLA_TYPE_MASK
	tracedPolicy  = 1      // NFT_TRACETYPE_POLICY
	tracedRule    = 3      // NFT_TRACETYPE_RULE
	verdictDrop   = 0      // NF_DROP, which a reject has too
	verdictStolen = 2      // NF_STOLEN
)

// listener reads what the kernel reports of traced packets.
type listener struct {
	socket *nl.NetlinkSocket
	mark   Mark
	stops  []stop
	byID   map[uint32]*traced // as the kernel numbers packets
	all    []*traced
}

// traced is what is known of one packet: how many stops it has passed, and how it ended.
type traced struct {
	passed int
	ended  bool
	by     Rule
}

func newListener(m Mark, n int, stops []stop) (*listener, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTRACE)
	if err != nil {
		return nil, fmt.Errorf("trace packets: %w", err)
	}
	_ = s.SetReceiveBufferSize(traceBuffer, true) // the default holds some packets' reports
	if err := s.SetReceiveTimeout(&traceWait); err != nil {
		s.Close()
		return nil, err
	}
	l := &listener{socket: s, mark: m, stops: stops, byID: map[uint32]*traced{}}
	for range n {
		l.all = append(l.all, &traced{})
	}
	return l, nil
}

// listen reads until each packet has ended, no more is reported, or it took traceMost.
func (l *listener) listen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, traceMost)
	defer cancel()
	for ctx.Err() == nil && slices.ContainsFunc(l.all, func(p *traced) bool { return !p.ended }) {
		messages, _, err := l.socket.Receive()
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("trace packets: %w", err)
		}
		for _, m := range messages {
			l.report(m)
		}
	}
	return nil
}

// report takes one message.
func (l *listener) report(m syscall.NetlinkMessage) {
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE || len(m.Data) < sizeofGenmsg {
		return
	}
	list, err := nl.ParseRouteAttr(m.Data[sizeofGenmsg:])
	if err != nil {
		return
	}
	a := map[uint16][]byte{}
	for _, x := range list {
		a[x.Attr.Type&typeMask] = x.Value
	}
	r := Rule{Family: kinds[nftables.TableFamily(m.Data[0])], Table: nl.BytesToString(a[unix.NFTA_TRACE_TABLE]), Chain: nl.BytesToString(a[unix.NFTA_TRACE_CHAIN])}
	ours, at := r.Table == traceTable, -1
	if ours {
		at = slices.IndexFunc(l.stops, func(s stop) bool { return s.chain() == r.Chain })
	}
	id := uint32(number(a[unix.NFTA_TRACE_ID]))
	l.recognize(id, a[unix.NFTA_TRACE_TRANSPORT_HEADER])
	p := l.byID[id]
	if p == nil || p.ended {
		return
	}
	if ours {
		p.passed = max(p.passed, at+1)
		p.ended = p.passed == len(l.stops) || at < 0 // it reached the other end: a rule redirects it, and drops nothing
		return
	}
	verdict := a[unix.NFTA_TRACE_POLICY]
	switch number(a[unix.NFTA_TRACE_TYPE]) {
	case tracedPolicy:
		r.Number = -1
	case tracedRule:
		verdict = nil
		if in, err := nl.ParseRouteAttr(a[unix.NFTA_TRACE_VERDICT]); err == nil && len(in) > 0 { // NFTA_VERDICT_CODE comes first
			verdict = in[0].Value
		}
		r.Handle = number(a[unix.NFTA_TRACE_RULE_HANDLE])
	default:
		return
	}
	if len(verdict) == 4 && (number(verdict) == verdictDrop || number(verdict) == verdictStolen) {
		p.ended, p.by = true, r
	}
}

// recognize notes which packet has an ID. The first report of each chain has the headers; the ID changes where a packet leaves
// a bridge.
func (l *listener) recognize(id uint32, transport []byte) {
	for _, at := range []int{TCPMark, PayloadMark} {
		if end := at + len(l.mark); len(transport) > end && Mark(transport[at:end]) == l.mark && int(transport[end]) < len(l.all) {
			l.byID[id] = l.all[transport[end]]
		}
	}
}

// number is an attribute in network byte order.
func number(b []byte) uint64 {
	var whole [8]byte
	copy(whole[8-min(len(b), 8):], b)
	return binary.BigEndian.Uint64(whole[:])
}

// fates says what became of each packet.
func (l *listener) fates() []Fate {
	out := make([]Fate, len(l.all))
	for i, p := range l.all {
		f := &out[i]
		switch {
		case p.by.Chain != "":
			f.Rule = p.by
			f.Rule.find()
		case p.ended:
			f.Passed = true
		case p.passed > 0:
			f.Behind = l.stops[p.passed-1].chain()
			if p.passed != len(entry) { // behind them is routing
				f.Hook, f.Table = l.stops[p.passed].hook, l.stops[p.passed].iptables
			}
		}
	}
	return out
}

// find finds a rule's place in its chain.
func (r *Rule) find() {
	if r.Number < 0 {
		return
	}
	for family, name := range kinds {
		if name != r.Family {
			continue
		}
		t := &nftables.Table{Name: r.Table, Family: family}
		rules, _ := conn().GetRules(t, &nftables.Chain{Name: r.Chain, Table: t})
		r.Number = slices.IndexFunc(rules, func(x *nftables.Rule) bool { return x.Handle == r.Handle })
	}
}

// Generation is a number that grows by one with each transaction of nftables, iptables-nft's included.
func Generation() (uint32, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddRawData(make([]byte, sizeofGenmsg))
	answer, err := request.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
	if err != nil || len(answer) == 0 || len(answer[0]) < sizeofGenmsg {
		return 0, fmt.Errorf("generation of nftables: %w", err)
	}
	all, err := nl.ParseRouteAttr(answer[0][sizeofGenmsg:])
	if err != nil || len(all) == 0 { // NFTA_GEN_ID comes first
		return 0, fmt.Errorf("generation of nftables: %w", err)
	}
	return uint32(number(all[0].Value)), nil
}

// Transactions is how many of them a trace makes.
const Transactions = 2

// String is how an operator finds it.
func (r Rule) String() string {
	if r.Handle == 0 {
		return "chain " + r.Chain + ", policy drop"
	}
	return fmt.Sprintf("chain %s, handle %d", r.Chain, r.Handle)
}

// kinds are the families of tables.
var kinds = map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyBridge: "bridge", nftables.TableFamilyNetdev: "netdev"} //nolint:gochecknoglobals // a constant

// IPTables reports whether iptables made the table, so that its rules are known by what iptables-save prints.
func (r Rule) IPTables() bool {
	return (r.Family == "ip" || r.Family == "ip6") && slices.Contains([]string{"raw", "mangle", "nat", "filter", "security"}, r.Table)
}

// Ours reports whether the table is one of ours.
func (r Rule) Ours() bool {
	return slices.Contains([]string{guardTable, natTable, closing.Table, heldTable.Name}, r.Table)
}
