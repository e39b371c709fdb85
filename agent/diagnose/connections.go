// Package diagnose judges what an agent has measured: it turns numbers into findings with a cause and a remedy. It queries
// nothing and keeps nothing. What findings are, package findings says.
//
//	connections.go  uplink, relays, peers
//	network.go      clock, UDP, proxy, MTU
//	pods.go         addresses that are left for pods
//	refusals.go     who was refused
//	nodeip.go       the addresses that kubelet reports
//	notices.go      what is worth an event in Kubernetes
package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/netcheck"
	"edgemesh/internal/cause"
	"edgemesh/internal/version"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/relay/relays"
)

// Uplink judges whether this node is cut off. why is what the kernel says of it, "" for nothing, which is believed as long as
// nothing is connected; otherwise several relays do not answer, nor does anything else.
func Uplink(why string, all []relays.Status, peers []control.PeerStatus) []findings.Finding {
	const id = "uplink"
	kind, _ := findings.Of(id)
	tunnelled := func(p control.PeerStatus) bool {
		return p.Path == "direct" || p.Path == "punched" || p.Path == "relayed"
	}
	connected := func(r relays.Status) bool { return r.Connected }
	if why != "" && !slices.ContainsFunc(all, connected) && !slices.ContainsFunc(peers, tunnelled) {
		return []findings.Finding{findings.Brokenf(id, kind.Remedy, "this node is cut off: %s", why)}
	}
	heard := func(r relays.Status) bool {
		return r.Connected || r.Spare || !r.Failed || r.Cause == cause.Refused || r.Cause == cause.RefusesUs || r.Refusal != ""
	}
	if len(all) < 2 || slices.ContainsFunc(all, heard) || slices.ContainsFunc(peers, tunnelled) {
		return []findings.Finding{findings.Okayf(id, "an interface leads off this host")}
	}
	const silent = "no-relay-answers"
	kind, _ = findings.Of(silent)
	return []findings.Finding{findings.Brokenf(silent, kind.Remedy,
		"none of %d relays answers, and no peer: this site has no internet connection, a firewall drops it, or all relays are off", len(all))}
}

// Relays judges the relays as they are known. One of several may be unreachable; without any, no node behind a NAT can reach
// this one. served: this node is a relay itself, so that it needs no other.
func Relays(all []relays.Status, served bool) []findings.Finding {
	const check = "relays"
	if len(all) == 0 && served {
		return nil // the others come here
	}
	if len(all) == 0 {
		return []findings.Finding{findings.Warningf("no-relays", "list at least one under relays in the membership",
			"the membership has no relays: only nodes that can dial each other directly are connected")}
	}
	reserved := slices.ContainsFunc(all, func(r relays.Status) bool { return r.Reserved })
	grade := findings.Brokenf
	if reserved {
		grade = findings.Warningf
	}
	var out []findings.Finding
	for _, r := range all {
		name := fmt.Sprintf("%s at %s", r.ID, r.Addr)
		f := findings.Skippedf(check, "check again in some seconds", "%s: %s", name, r.Cause)
		switch {
		case r.Reserved:
			f = findings.Okayf(check, "%s: connected, reserved, round trip %v", name, r.RTT.Round(100*time.Microsecond))
		case r.Spare:
			f = findings.Okayf(check, "%s: not needed now, round trip %v", name, r.RTT.Round(100*time.Microsecond))
		case !r.Failed: // no attempt has ended yet
		case r.Refusal != "":
			f = Proxy(name, r.Refusal, reserved)
		case r.Connected:
			f = grade("relay-refuses", "check that the relay's membership lists this node, and its limits", "relay %s gives no reservation: %s", name, r.Cause)
		case r.Cause == cause.NoName:
			f = grade("relay-unreachable", netcheck.CheckNames, "relay %s cannot be found: %s", name, r.Cause)
		default:
			f = grade("relay-unreachable", "check that edgemesh-relay runs there, that its port is open for TCP and UDP, and that the membership has its peer ID",
				"relay %s is not connected: %s", name, r.Cause)
		}
		out = append(out, f.About(r.ID.String()))
	}
	return out
}

// RelayService judges what relays do for the cluster as a whole. served: this node is one itself.
func RelayService(all []control.RelayStatus, served bool, now time.Time) (out []findings.Finding) {
	if len(all) == 1 && !served {
		out = append(out, findings.Notef("one-relay", "the membership has one relay: while that is down, what it carries stops"))
	}
	for _, r := range all {
		patience, lacks := 5*time.Minute, "may lack newly signed members and bans" // of 10,000 members each has its turn within minutes
		if r.Lacks > 0 {
			patience, lacks = time.Minute, wording.Sprintf("does not take %d of what is signed (%s)", r.Lacks, wording.Most(r.Lacking, 3))
		}
		if r.Behind != nil && now.Sub(*r.Behind) > patience {
			kind, _ := findings.Of("relay-behind")
			f := findings.Warningf(kind.ID, kind.Remedy,
				"relay %s %s: it refuses new members, and serves banned ones", wording.ShortID(r.PeerID), lacks)
			f.Since = r.Behind
			out = append(out, f.About(r.PeerID))
		}
		if version.Older(r.Version) {
			out = append(out, findings.Notef("relay-old", "relay %s runs %s, an earlier minor release than this node's", wording.ShortID(r.PeerID), r.Version).About(r.PeerID))
		}
	}
	return out
}

// Peers judges members that packets wait for. Only these are looked for: the others cost nothing. While all relays have failed,
// one without a path is unreachable immediately: its last attempt may not have ended.
func Peers(used []control.PeerStatus, all []relays.Status) []findings.Finding {
	var out []findings.Finding
	cut := len(all) > 0 && !slices.ContainsFunc(all, func(r relays.Status) bool { return r.Reserved || !r.Failed })
	for _, p := range used {
		if p.Path != string(paths.KindNone) {
			continue
		}
		f := findings.Skippedf("peers", "check again in some seconds", "%s: connecting", p.Node)
		switch {
		case p.Offline != nil:
			f = findings.Warningf("peer-offline", "start that machine or its agent, or check its uplink; `edgemesh-agent doctor` on "+p.Node+" says more",
				"%s is offline: no relay has it (first refused %s); its agent does not run, or it has no uplink", p.Node, moment(*p.Offline))
			f.Since = p.Offline
		case cut:
			f = unreachable(p.Node, "no path to %s: %s", p.Node, cause.NoRelay)
		case p.Silent && p.LastHeard != nil:
			f = unreachable(p.Node, "%s does not answer (last heard %s)", p.Node, moment(*p.LastHeard))
		case p.Silent && p.Cause == cause.NoAnswer:
			f = unreachable(p.Node, "%s does not answer (not heard since this agent started)", p.Node)
		case p.Failed:
			f = unreachable(p.Node, "no path to %s: %s", p.Node, p.Cause)
		}
		out = append(out, f.About(p.Node))
	}
	if len(out) == 0 {
		out = append(out, findings.Okayf("peers", "%s in use, each with a path%s", wording.Count(len(used), "peer"), transports(used)))
	}
	return out
}

// unreachable is the finding of a peer that is not known to be off.
func unreachable(node, format string, args ...any) findings.Finding {
	return findings.Warningf("peer-unreachable", "run `edgemesh-agent doctor "+node+"`, and `edgemesh-agent netcheck` on both nodes", format, args...)
}

// transports says how many peers each transport carries packets to.
func transports(used []control.PeerStatus) (text string) {
	count := map[string]int{}
	for _, p := range used {
		if p.Transport != "" {
			count[p.Transport]++
		}
	}
	sep := ": "
	for _, t := range slices.Sorted(maps.Keys(count)) {
		text += fmt.Sprintf("%s%d over %s", sep, count[t], t)
		sep = ", "
	}
	return text
}

// moment is a time of today without its date.
func moment(t time.Time) string {
	if time.Since(t) < 24*time.Hour {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}
