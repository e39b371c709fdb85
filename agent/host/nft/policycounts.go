package nft

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/cni/closing"
)

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
		out.Total[d] = packetsOf(rules[len(rules)-1])
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
				hits[by] += packetsOf(r)
			}
		}
		out.Hits[x.Name] = hits
	}
	return out, nil
}

// packetsOf is how many packets a rule has counted.
func packetsOf(r *nftables.Rule) uint64 {
	for _, e := range r.Exprs {
		if c, ok := e.(*expr.Counter); ok {
			return c.Packets
		}
	}
	return 0
}
