package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	policy "edgemesh/agent/policy/compile"
)

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
