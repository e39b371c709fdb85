package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/findings"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Refused looks at who was refused in the last minutes. name is the node of a member's peer ID, "" for others; at is
// the node that was seen at an address. All of them are warnings: what is refused harms nothing but those who are.
func Refused(all []refusals.Refusal, name func(peer.ID) string, at func(netip.Addr) string) []findings.Finding {
	var out []findings.Finding
	reported := map[string]bool{}
	for _, r := range all {
		f := finding(r, name(r.Peer), at(address(r.From)))
		if key := f.ID + f.Text; !reported[key] {
			reported[key] = true
			out = append(out, f)
		}
	}
	if len(out) == 0 {
		return []findings.Finding{findings.Okayf("refused", "nobody was refused within the last %v", refusals.Kept)}
	}
	return out
}

// finding is what an operator has to know of one refusal. node is the peer's, seen the one at its address.
func finding(r refusals.Refusal, node, seen string) findings.Finding {
	const key = "if that node was installed again, run `edgemesh-agent id` there and register its peer ID in place of the one in the membership"
	who := r.Peer.String()
	if node != "" {
		who = fmt.Sprintf("node %s (%s)", node, who)
	}
	switch r.Reason {
	case refusals.Key:
		return findings.Warningf("key-mismatch", key, "the key of %s does not match its entry: at %s (%d times)", who, r.From, r.Count)
	case refusals.Stranger:
		if seen != "" {
			return findings.Warningf("key-mismatch", key, "peer %s connects from %s, where node %s was before, and is not a member: the key there may not match its entry (%d times)",
				who, r.From, seen, r.Count)
		}
		return findings.Warningf("stranger", "if it is a node of this cluster, its key is not the one in the membership: run `edgemesh-agent id` there and register it; otherwise nothing, or block its address",
			"peer %s connects from %s and is not a member (refused %d times)", who, r.From, r.Count)
	case refusals.Banned:
		return findings.Warningf("banned", "nothing, if it is to stay out; otherwise remove it from `banned` in the membership",
			"%s connects from %s and is refused: it is banned, or was disconnected a moment ago (%d times)", who, r.From, r.Count)
	case refusals.Handshakes:
		return findings.Warningf("handshakes", "block that address in the firewall; members keep the places reserved for addresses where they were seen",
			"all places for handshakes are taken by connections that do not say who they are: %d refused, the last from %s", r.Count, r.From)
	case refusals.Address:
		return findings.Warningf("handshakes", "block that address in the firewall, unless many nodes stand behind it",
			"an address opens more connections than its share without saying who it is: %d refused, the last from %s", r.Count, r.From)
	case refusals.Inside:
		return findings.Warningf("stranger", "check the cluster's podCIDRs: they must not contain nodes' own addresses",
			"connections from %s, inside the pod network, are refused (%d times)", r.From, r.Count)
	}
	return findings.Warningf("limits", "restart the agent there if it is a node of yours; if it continues, ban it",
		"%s at %s goes beyond its share of this node: %s (refused %d times)", who, cmp.Or(r.From, "an unknown address"), r.Reason, r.Count)
}

// address is the IP address in a refusal's; zero if there is none.
func address(from string) netip.Addr {
	if a, err := netip.ParseAddr(from); err == nil {
		return a
	}
	m, err := ma.NewMultiaddr(from)
	if err != nil {
		return netip.Addr{}
	}
	a, _ := endpoint.IP(m)
	return a
}
