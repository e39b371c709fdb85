package decide

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

// Off says why this node takes no part in native and in VXLAN paths; "" when it does.
type Off struct{ Native, VXLAN string }

// entirely reports whether it takes part in neither.
func (o Off) entirely() bool { return o.Native != "" && o.VXLAN != "" }

// mutes reports whether a peer gets no offers: this node takes no part in LAN paths, and there is no session to end.
func (o Off) mutes(p *peer) bool { return o.entirely() && p.sess == nil }

// Status is how a member's pods are reached past the tunnel.
type Status struct {
	Kind  mesh.PathKind // "" is the tunnel
	RTT   time.Duration // 0 when not known
	Since time.Time     // of Kind, when it is not ""
	// Reason says why the path is not a native one, or what holds only for the pods
	// of one IP version; "" when there is nothing to say.
	Reason string
	Via    netip.Addr // the peer's underlay address of Kind
	Heard  time.Time  // when a probe or an answer last came from the peer; zero: never
	// Proof of the paths: forwarded probes beside gateway probes, or, for one IP version at least, these alone (gateway). Cut are kinds of packets that the former find lost on a path
	// which stays, since no other one passes them.
	Proof string
	Cut   []string
	// Answers says who rejects them, "" where nobody answers.
	Answers string
	// Received is how many bytes have come from the peer past the tunnel; of VXLAN with its headers.
	Received uint64
	// Proved are the peer's underlay addresses from which answers have come back, on the paths that are up.
	Proved []netip.Addr
	// Untrusted are this node's and the peer's address that VXLAN might reach if an entry of lan.trusted had both.
	Untrusted [2]netip.Addr
	// Global are this node's and the peer's global address on one link that no entry of lan.trusted has, and its prefix.
	Global Neighbours
}

// Neighbours are two addresses of one link.
type Neighbours struct {
	Us, Them netip.Addr
	On       netip.Prefix
}

// neighbours are global addresses of one link that a native path may not use; ok: nothing better is there.
func (p *peer) neighbours() (n Neighbours, ok bool) {
	all := globalPairs(p.us, p.them, p.low, false)
	if len(all) == 0 || p.us.NoNative != "" || p.them.NoNative != "" || slices.ContainsFunc(pairsOf(p.us, p.them, p.low), pair.onLink) {
		return n, false
	}
	x := all[0]
	return Neighbours{x.us.Addr, x.them.Addr, netip.PrefixFrom(x.us.Addr, max(x.us.Bits, x.them.Bits)).Masked()}, true
}

// status describes the peer.
func (p *peer) status(off Off) Status {
	out := Status{Received: p.received}
	if x, why := p.untrusted(); why != "" && !p.works() {
		out.Untrusted = [2]netip.Addr{x.us.Addr, x.them.Addr}
	}
	if n, ok := p.neighbours(); ok && !p.works() {
		out.Global = n
	}
	for _, t := range p.tracks {
		for _, at := range []time.Time{t.heard, t.answered} {
			if at.After(out.Heard) {
				out.Heard = at
			}
		}
		if t.usable() && !slices.Contains(out.Proved, t.c.via) {
			out.Proved = append(out.Proved, t.c.via)
		}
	}
	first := true
	for v, name := range [2]string{"IPv4", "IPv6"} {
		if !p.pods[v] {
			continue
		}
		t := p.using[v]
		why := p.reason(v == 1, off)
		if t != nil && t.cut != 0 {
			out.Cut, out.Answers = t.cut.names(), t.answers
		}
		if out.Proof = cmp.Or(out.Proof, "forwarded"); t != nil && (!p.forwards[v].proves() || t.tested.IsZero()) {
			out.Proof = "gateway"
		}
		if first {
			first = false
			if t != nil {
				out.Kind, out.RTT, out.Since, out.Via = t.c.kind, t.rtt, t.upAt, t.c.via
			}
			out.Reason = why
			continue
		}
		kind := mesh.PathKind("")
		if t != nil {
			kind = t.c.kind
		}
		if kind == out.Kind || p.sess == nil {
			continue
		}
		text := string(kind)
		if text == "" {
			text = "through the tunnel"
		}
		if why != "" {
			text += " (" + why + ")"
		}
		out.Reason = Join(out.Reason, name+" pods: "+text)
	}
	return out
}

// reason says why the pods of one IP version have no better path.
func (p *peer) reason(v6 bool, off Off) string {
	v := version(v6)
	if t := p.using[v]; t != nil && t.c.kind == mesh.Native {
		return t.reason()
	}
	if off.Native != "" && off.Native == off.VXLAN {
		return "no LAN path: " + off.Native
	}
	if p.sess == nil {
		if p.offerErr != "" {
			return "no LAN path: " + p.offerErr
		}
		return ""
	}
	switch {
	case p.us.PodsOnly && !p.them.PodsOnly:
		return "no LAN path: hostAccess is nodes or none here, so that nodes' own packets take the tunnel; the peer's release does not know that (0.3 does), or its hostAccess is all"
	case p.them.PodsOnly && !p.us.PodsOnly:
		return "no LAN path: hostAccess is all here, and nodes or none at the peer; give both the same membership"
	}
	out := "native: " + p.kindReason(mesh.Native, v6, off.Native, p.them.NoNative)
	if p.using[v] == nil {
		if vx := p.kindReason(mesh.VXLAN, v6, off.VXLAN, p.them.NoVXLAN); vx != "" {
			out = Join(out, "vxlan: "+vx)
		}
	}
	return out
}

// reason says what is wrong with a path, "" for nothing that is known.
func (t *track) reason() string {
	if t.why == "" {
		return ""
	}
	return fmt.Sprintf("%s: %s", t.c, t.why)
}

// kindReason says why no track of a kind is in use.
func (p *peer) kindReason(kind mesh.PathKind, v6 bool, ours, theirs string) string {
	switch {
	case ours != "":
		return ours
	case theirs != "":
		return "the peer says: " + theirs
	}
	var out, missing string
	if x, why := p.untrusted(); why != "" {
		missing = fmt.Sprintf(why+", and no entry of the membership's lan.trusted has both", x.us.Addr, x.them.Addr)
	}
	for slot := range mesh.ProbeSlots {
		t := p.tracks[trackKey{v6, slot}]
		if t == nil || t.c.kind != kind {
			continue
		}
		switch {
		case t.why != "":
			out = Join(out, t.reason())
		case !t.usable():
			out = Join(out, fmt.Sprintf("%s: being probed", t.c))
		}
	}
	switch {
	case out != "" && kind == mesh.VXLAN && missing != "":
		return out + "; " + missing
	case out != "":
		return out
	case kind == mesh.VXLAN && (p.us.VXLANPort != p.them.VXLANPort || p.us.VXLANIPv6 != p.them.VXLANIPv6):
		return "the peer's VXLAN has another port or IP version"
	}
	if n, ok := p.neighbours(); ok && kind == mesh.Native {
		return fmt.Sprintf("%s and %s are on one link by global addresses alone: add a ULA to both, or list %s in the membership's lan.trusted", n.Us, n.Them, n.On)
	}
	switch {
	case len(p.us.Addrs) == 0:
		return "this node has no private address"
	case len(p.them.Addrs) == 0:
		return "the peer has no private address"
	case kind == mesh.Native:
		for _, x := range pairsOf(p.us, p.them, p.low) {
			if x.onLink() && x.cloned() {
				return fmt.Sprintf("both have the MAC %s on one LAN: give one of them another (cloned machines)", net.HardwareAddr(x.us.MAC[:]))
			}
		}
		return "no LAN in common"
	}
	if missing != "" {
		return missing
	}
	return "no pair of private addresses of one IP version that differ"
}

// Join is two reasons, the first of which may be "".
func Join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
