package host

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// kube-proxy's nftables mode masquerades in a table of its own, at the priority of
// iptables' nat, and of two chains of one priority the one that came last is asked
// first: iptables' rule for packets into the cluster (EDGEMESH-INSIDE) never sees what
// kube-proxy has translated. On the TUN that made no difference, its address is the
// gateway's. On a native path it is the LAN's address, which the peer drops. So where
// such paths may be, the same is said once more in a chain that comes before both:
//
//	table inet edgemesh-nat {
//		chain inside { type nat hook postrouting priority srcnat - 1
//			oifname { edgemesh-br, lo } return
//			ip daddr RANGE meta mark & 0x4000 == 0x4000 snat to GATEWAY
//			ip saddr RANGE return
//			ip daddr RANGE snat to GATEWAY
//		}
//	}
const (
	snatTable = "edgemesh-nat"
	snatChain = "inside"
)

// snat is the wanted table.
type snat struct{ families []family }

func (fs families) snat() snat {
	var s snat
	for _, f := range fs.held() {
		if f.lan.on && !f.keep && f.gateway.IsValid() && len(f.ranges) > 0 {
			s.families = append(s.families, f)
		}
	}
	return s
}

// print names the content of the table; the first rule carries it.
func (s snat) print() []byte {
	h := sha256.New()
	for _, f := range s.families {
		fmt.Fprintf(h, "1 %v %v\n", f.ranges, f.gateway)
	}
	return h.Sum(nil)[:8]
}

// rules are the chain's, in order.
func (s snat) rules() [][]expr.Any {
	out := [][]expr.Any{leaving(BridgeName), leaving("lo")}
	for _, f := range s.families {
		for _, r := range f.ranges {
			out = append(out, append(append(within(r, destination), marked()...), translate(f.gateway)...))
		}
		for _, r := range f.ranges {
			out = append(out, append(within(r, source), &expr.Verdict{Kind: expr.VerdictReturn}))
		}
		for _, r := range f.ranges {
			out = append(out, append(within(r, destination), translate(f.gateway)...))
		}
	}
	return out
}

// leaving ends the chain for packets out of an interface.
func leaving(name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: ifname(name)},
		&expr.Verdict{Kind: expr.VerdictReturn},
	}
}

// side is which address of a packet is compared.
type side bool

const (
	source      side = false
	destination side = true
)

// within matches packets with one of their addresses in r.
func within(r netip.Prefix, which side) []expr.Any { return withinBut(r, which, netip.Addr{}) }

// withinBut is within, but for one address if that is valid.
func withinBut(r netip.Prefix, which side, but netip.Addr) []expr.Any {
	at, size := sourceAt(r.Addr().Is6())
	if which == destination {
		at += size
	}
	out := append(isVersion(r.Addr().Is6()), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: size})
	if but.IsValid() {
		out = append(out, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: but.AsSlice()})
	}
	return append(out,
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(r.Bits(), r.Addr().BitLen()), Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: r.Masked().Addr().AsSlice()})
}

// marked matches what kube-proxy wants to masquerade.
func marked() []expr.Any {
	bit := binaryutil.NativeEndian.PutUint32(kubeMark)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: bit, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: bit},
	}
}

// translate gives a packet the source to.
func translate(to netip.Addr) []expr.Any {
	version := uint32(unix.NFPROTO_IPV4)
	if to.Is6() {
		version = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: version, RegAddrMin: 1},
	}
}

// diffSNAT compares the table. A kernel that cannot hold it is told of once: only
// kube-proxy's nftables mode needs it, which needs the same of the kernel.
func (h *Host) diffSNAT(fs families) ([]change, error) {
	if missingNFT() != "" || h.noSNAT {
		return nil, nil
	}
	s := fs.snat()
	have, err := s.inPlace()
	switch {
	case err != nil:
		return nil, err
	case len(s.families) == 0 && have == nil, have != nil && *have:
		return nil, nil
	case len(s.families) == 0:
		return []change{{"delete nftables table inet " + snatTable, removeSNATTable}}, nil
	}
	return []change{{"make nftables table inet " + snatTable, func() error {
		err := s.make(have != nil)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
			h.noSNAT = true
			h.log.Warn("the kernel has no nat in nftables: with kube-proxy's nftables mode nodes reach no Service by native paths", "err", err)
			return nil
		}
		return err
	}}}, nil
}

// inPlace reports whether the table is as wanted; nil means that there is none.
func (s snat) inPlace() (*bool, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t, err := findTable(c, snatTable)
	if t == nil || err != nil {
		return nil, err
	}
	is := false
	chain, err := c.ListChain(t, snatChain)
	if err != nil || chain == nil {
		return &is, nil
	}
	rules, err := c.GetRules(t, chain)
	if err != nil {
		return nil, fmt.Errorf("list nftables rules: %w", err)
	}
	is = len(s.families) > 0 && len(rules) == len(s.rules()) && bytes.Equal(rules[0].UserData, s.print())
	return &is, nil
}

// make writes the whole table in one transaction.
func (s snat) make(replace bool) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Name: snatTable, Family: nftables.TableFamilyINet}
	if replace {
		c.DelTable(t)
	}
	c.AddTable(t)
	chain := c.AddChain(&nftables.Chain{Name: snatChain, Table: t, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 1)})
	for i, exprs := range s.rules() {
		rule := &nftables.Rule{Table: t, Chain: chain, Exprs: exprs}
		if i == 0 {
			rule.UserData = s.print()
		}
		c.AddRule(rule)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", snatTable, err)
	}
	return nil
}

func removeSNATTable() error { return removeTable(snatTable) }
