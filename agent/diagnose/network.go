package diagnose

import (
	"strings"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/lan/decide"
	"edgemesh/agent/netcheck"
	"edgemesh/internal/proxy"
	"edgemesh/internal/wording"
)

// Clock judges how far this host's clock is off. Packets flow with any clock, so that it warns; where something is broken
// that needs certificates, a wrong clock is the cause.
func Clock(c *netcheck.Clock, broken bool) []findings.Finding {
	const remedy = "set the clock, for instance with chrony or systemd-timesyncd"
	if c == nil {
		return []findings.Finding{findings.Skippedf("clock", "give a relay an address for WebSockets (docs/relay.md): it reports the time there", "not compared: no relay reported the time by WebSocket")}
	}
	off := time.Duration(c.OffsetMs) * time.Millisecond
	switch {
	case off.Abs() <= netcheck.ClockTolerance:
		return []findings.Finding{findings.Okayf("clock", "%v from relay %s's, which is read to a second", off.Round(time.Second), c.Relay)}
	case broken && off.Abs() >= netcheck.ClockFails:
		return []findings.Finding{findings.Brokenf("clock", remedy, "this host's clock differs from the relay's by %v: certificates and tokens are refused", off.Round(time.Second))}
	}
	return []findings.Finding{findings.Warningf("clock", remedy, "this host's clock differs from the relay's by %v: %s", off.Round(time.Second), netcheck.ClockEffect(off))}
}

// Remedies gives relays that do not answer the remedy of what probes found.
func Remedies(all []findings.Finding, probed []netcheck.Relay) []findings.Finding {
	for i, f := range all {
		for _, r := range probed {
			if f.ID == "relay-unreachable" && f.Subject == r.PeerID {
				all[i].Remedy = r.Remedy()
			}
		}
	}
	return all
}

// UDP judges which relays answer by TCP and not by UDP. That a connection over QUIC exists proves nothing: it may have died
// a moment ago. quic and tcp are the peers that are reached directly and past this node's networks, over UDP and by TCP alone.
func UDP(all []netcheck.Relay, quic, tcp []string) []findings.Finding {
	var closed []netcheck.Relay
	var open []string
	for _, r := range all {
		switch {
		case r.UDP == nil: // the membership has no such address
		case r.UDP.Answered():
			open = append(open, r.UDP.Addr)
		case r.TCP.Answered() || r.WS.Answered():
			closed = append(closed, r)
		}
	}
	var out []findings.Finding
	for _, r := range closed {
		const relays = "open this UDP port in the relay's firewall and its provider's (security group): "
		remedy := relays + "other relays answer by UDP"
		switch {
		case len(open) > 0:
		case len(quic) > 0:
			remedy = relays + "UDP leaves this site, since it reaches " + wording.Most(quic, 3)
		case len(tcp) > 0:
			remedy = "allow outgoing UDP in this site's firewall: " + wording.Most(tcp, 3) + ", which this node reaches directly, too, answers by TCP alone"
		default:
			remedy = "which end drops it: run `edgemesh-agent netcheck` at another site. If the relay does not answer by UDP there, open the port in its firewall and its provider's; if it does, allow outgoing UDP in this site's firewall"
		}
		out = append(out, findings.Warningf("udp", remedy, "relay %s answers by TCP, but not by UDP at %s: paths run over TCP, and holes are punched rarely", r.PeerID, r.UDP.Addr))
	}
	if len(closed) == 0 && len(open) > 0 {
		out = append(out, findings.Okayf("udp", "%s by UDP: %s", wording.Count(len(open), "relay answers", "relays answer"), open))
	}
	return out
}

// Proxy judges why a relay is not reached through the HTTP proxy. reserved: another one is.
func Proxy(relay string, why proxy.Cause, reserved bool) findings.Finding {
	what, remedy, found := strings.Cut(string(why), ": ")
	if !found {
		remedy = "look at the proxy's log for what it refuses"
	}
	if reserved {
		return findings.Warningf("proxy", remedy, "%s: %s", relay, what)
	}
	return findings.Brokenf("proxy", remedy, "%s: %s", relay, what)
}

// MTU judges LAN paths that lose packets of full size.
func MTU(peers []control.PeerStatus) []findings.Finding {
	var out []findings.Finding
	for _, p := range peers {
		if strings.Contains(p.Reason, decide.LostWhole) {
			out = append(out, findings.Warningf("mtu", "set the MTU of the interface to that LAN to what passes (find it with `ping -M do -s SIZE`), on both nodes, or "+
				"repair what drops larger packets without an answer: a VPN, a switch, PPPoE. The tunnel carries the packets meanwhile",
				"%s: %s", p.Node, p.Reason))
		}
	}
	if len(out) == 0 {
		lan := 0
		for _, p := range peers {
			if p.Path == "native" || p.Path == "vxlan" {
				lan++
			}
		}
		out = append(out, findings.Okayf("mtu", "no LAN path loses packets of full size; %d of %d peers in use are on one", lan, len(peers)))
	}
	return out
}

// Large judges packets of full size to one address of a node, where small ones were answered.
func Large(node, to, path string, size, answered, sent int) findings.Finding {
	if answered > 0 {
		return findings.Okayf("size", "%d of %d packets of %d bytes are answered", answered, sent, size)
	}
	where, more := "between here and "+node, ""
	switch path {
	case "relayed":
		where = "between the relay and here or " + node
	case "native", "vxlan":
		more = "; `encryption: always` in the membership avoids LAN paths"
	}
	return findings.Brokenf("size", "look "+where+" for a firewall that drops ICMP \"too big\" (IPv4: type 3, code 4; IPv6: type 2) and let these pass, then for a "+
		"VPN, a switch or PPPoE that drops large packets; or set the MTU of the interface there to what passes"+more,
		"%s answers small packets, but none of %d of %d bytes: something %s (path: %s) silently drops large ones", to, sent, size, where, path)
}
