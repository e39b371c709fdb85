package view

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/lan/decide"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/nat/portguess"
)

// ErrNoNode means that the cluster has no node of that name.
var ErrNoNode = errors.New("no such member")

// Find is the peer that name, or a peer ID, means. The error wraps ErrNoNode, and offers names that are close.
func Find(s control.Status, name string) (control.PeerStatus, error) {
	names := []string{s.Node}
	for _, p := range s.Peers {
		if p.Node == name || p.PeerID == name {
			return p, nil
		}
		names = append(names, p.Node)
	}
	if a, err := netip.ParseAddr(name); err == nil {
		return control.PeerStatus{}, fmt.Errorf("%s: %w: it is %s", name, ErrNoNode, owner(s.Peers, a))
	}
	return control.PeerStatus{}, fmt.Errorf("%s: %w%s", name, ErrNoNode, wording.Offer(name, names))
}

// owner says whose an address is.
func owner(peers []control.PeerStatus, a netip.Addr) string {
	for _, p := range peers {
		if inside(p.PodCIDRs, a) {
			return fmt.Sprintf("an address of node %s; `edgemesh-agent doctor %s` follows a packet there", p.Node, a)
		}
	}
	return "an address in no other node's block"
}

func inside(blocks []string, a netip.Addr) bool {
	return slices.ContainsFunc(blocks, func(text string) bool {
		block, err := netip.ParsePrefix(text)
		return err == nil && block.Contains(a)
	})
}

// CheckAddress is an error unless a is this node's or one of some peers'. Where another plugin has the pods, the status does
// not say which blocks are this node's.
func CheckAddress(s control.Status, peers []control.PeerStatus, a netip.Addr) error {
	if len(s.Pools) == 0 || slices.ContainsFunc(s.Pools, func(p control.Pool) bool { return inside(p.Blocks, a) }) ||
		slices.ContainsFunc(peers, func(p control.PeerStatus) bool { return inside(p.PodCIDRs, a) }) {
		return nil
	}
	return fmt.Errorf("%s is not in this node's blocks: it is %s", a, owner(s.Peers, a))
}

// Sites are the sites of a status, in order.
func Sites(s control.Status) []string {
	sites := map[string]bool{}
	for _, p := range s.Peers {
		sites[p.Site] = true
	}
	delete(sites, "")
	return slices.Sorted(maps.Keys(sites))
}

// Peer prints all that is known of one.
func Peer(w io.Writer, on Screen, s control.Status, p control.PeerStatus, now time.Time) {
	fmt.Fprintf(w, "%s  %s\n", on.Paint(bold, "node "+clean(p.Node)), on.Paint(pathColours[p.Path], clean(p.Path)))
	var t table
	line := func(name, value string) {
		if value != "" {
			t.Add(plain, name, value)
		}
	}
	line("site", p.Site)
	line("peer ID", p.PeerID)
	line("pods", strings.Join(p.PodCIDRs, ", "))
	path := p.Path
	if p.Transport != "" {
		path += " over " + p.Transport
	}
	if p.Since != nil {
		path += ", for " + since(p.Since, now)
	}
	line("path", path)
	line("carrier", p.Choice)
	line("endpoint", endpoint(p))
	line("relay", relayName(s, p.Relay))
	line("datagrams", p.Datagrams)
	if p.RTTMs != nil {
		line("round trip", millis(p.RTTMs))
	}
	line("tunnel", fmt.Sprintf("sent %s, received %s", wording.Bytes(p.TxBytes), wording.Bytes(p.RxBytes)))
	if p.RateMbps != nil {
		line("rate", rate(p.RateMbps)+" when last busy")
	}
	line("queue", queueText(p))
	if p.LANBytes > 0 {
		line("LAN", "received "+wording.Bytes(p.LANBytes))
	}
	line("drops", drops(p))
	line("reason", p.Reason)
	name, do, two := nearby(p.Reason)
	line(name, do)
	if p.Path == "relayed" && two != "" && strings.Contains(p.Reason, portguess.BothRandom) {
		line(two, "what goes through the relay arrives, but slower. To make it direct, have a port mapping at one of the two sites: enable PCP, NAT-PMP or UPnP on the router there, "+
			"or give the node there an address of its own (docs/relay.md, Ports of a site's router)")
	}
	if p.Punch != nil {
		line("last tried", strings.Join(p.Punch.Tried, "; "))
	}
	t.Print(w, on)
}

// nearby is what to do, with its name, where a LAN path gets no answer; two is the name of what to do if the two are at two sites, "" if
// they are not.
func nearby(reason string) (name, do, two string) {
	switch {
	case strings.Contains(reason, decide.Filtered):
		return "remedy", "accept UDP ports 5210 and 5211 from the LAN, and what comes in on edgemesh-br, in the firewall of that host, or of this one (docs/troubleshooting.md)", ""
	case strings.Contains(reason, decide.Unresolved):
		return "same LAN?", "if both nodes are on one LAN, it keeps its hosts apart: client isolation of the Wi-Fi, or port isolation of the switch. Switch that off there, and the path is native", "two sites?"
	case strings.Contains(reason, decide.NoAnswer):
		return "same LAN?", "if both nodes are on one LAN, something there keeps them apart: a Wi-Fi's client isolation, a switch's port isolation, or a firewall of either host. Remove that, and the path is native", "two sites?"
	}
	return "", "", "remedy"
}

// queueText says where packets wait: here for the path, or on it.
func queueText(p control.PeerStatus) string {
	var parts []string
	if p.QueueMs != nil {
		parts = append(parts, millis(p.QueueMs)+" here, of the oldest packet")
	}
	if p.WayMs != nil && p.Path != "none" {
		parts = append(parts, millis(p.WayMs)+" on the path, both directions")
	}
	return strings.Join(parts, "; ")
}

// relayName is the relay's ID and its address, if that is known.
func relayName(s control.Status, id string) string {
	for _, r := range s.Relays {
		if r.PeerID == id && id != "" {
			return id + " at " + r.Addr
		}
	}
	return id
}

func drops(p control.PeerStatus) string {
	var by []string
	for _, reason := range slices.Sorted(maps.Keys(p.DropsBy)) {
		by = append(by, fmt.Sprintf("%s %d", reason, p.DropsBy[reason]))
	}
	return cmp.Or(strings.TrimSuffix(fmt.Sprintf("%d: %s", p.Drops, strings.Join(by, ", ")), ": "), "0")
}
