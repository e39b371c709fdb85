package enforce

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/host/nft"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
)

var directions = [2]string{"ingress", "egress"} //nolint:gochecknoglobals // a constant

// Status is what applies, and what it did: of one pod, NAMESPACE/NAME or an address of it, or of all with "".
func (o *Owner) Status(pod string) control.Policies {
	f := o.InForce()
	counts, err := o.c.Kernel.Counts(true)
	out := control.Policies{Source: f.From, Off: f.Off, Problem: text(cmp.Or(f.Problem, f.Unread)), Failure: text(cmp.Or(f.Failure, err)), Dropped: map[string]uint64{},
		Pods: []control.PolicyPod{}, Flows: []control.PolicyFlow{}}
	for d, n := range counts.Total {
		out.Dropped[directions[d]] = n
	}
	at := map[string]int{}
	for _, a := range slices.SortedFunc(maps.Keys(f.At), netip.Addr.Compare) {
		place := f.At[a]
		if pod != "" && pod != place.Pod && pod != a.String() {
			continue
		}
		i, seen := at[place.Pod]
		if !seen {
			i, at[place.Pod] = len(out.Pods), len(out.Pods)
			out.Pods = append(out.Pods, control.PolicyPod{Pod: place.Pod})
		}
		p := &out.Pods[i]
		if !a.IsLinkLocalUnicast() {
			p.Addresses = append(p.Addresses, a.String())
		}
		for d, of := range []**control.PolicyDirection{&p.Ingress, &p.Egress} {
			name := place.Chains[d]
			if name == "" {
				continue
			}
			if *of == nil {
				*of = &control.PolicyDirection{Closed: name == policy.Closed, Policies: f.Chains[name].Policies, Hits: counts.HitsOf(policy.Direction(d), name)}
			}
			(*of).Dropped += counts.Pods[d][a]
			(*of).NoPort = noPort(f.Lacks, policy.Direction(d), (*of).Policies)
		}
	}
	for _, x := range flows(f, counts) {
		if pod == "" || pod == x.Pod || pod == x.From || pod == x.To {
			out.Flows = append(out.Flows, x)
		}
	}
	return out
}

// noPort names the ports of these policies that nobody has.
func noPort(all []policy.Lack, d policy.Direction, by []string) (out []string) {
	for _, l := range all {
		if l.Direction == d && slices.Contains(by, l.Policy) {
			out = append(out, l.Policy+": "+l.Port)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return wording.OneLine(err.Error())
}

// flows are those that were dropped, most packets first. What passes by now is left out: the rules have changed since.
func flows(f InForce, counts nft.PolicyCounts) (out []control.PolicyFlow) {
	for p, n := range counts.Flows {
		pass, by, d := f.Verdict(p)
		if pass {
			continue
		}
		own := p.Dst
		if d == policy.Egress {
			own = p.Src
		}
		x := control.PolicyFlow{From: p.Src.String(), To: p.Dst.String(), Protocol: policy.ProtocolName(p.Protocol), Port: p.Port, Packets: n,
			Direction: directions[d], Pod: f.At[own].Pod, Policies: by}
		if p.Protocol == 1 || p.Protocol == 58 {
			x.Port = 0
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b control.PolicyFlow) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.From+a.To+a.Protocol, b.From+b.To+b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return out
}

// Dropped is how many packets were dropped, by direction; nil where nothing is enforced.
func (o *Owner) Dropped() map[string]uint64 {
	if !o.c.Kernel.Standing() {
		return nil
	}
	counts, err := o.c.Kernel.Counts(false)
	if err != nil {
		return nil
	}
	return map[string]uint64{"ingress": counts.Total[0], "egress": counts.Total[1]}
}

const (
	// dropsEvery is how often drops are looked for where rules are in force, and mostDrops how many of them are logged each time.
	dropsEvery = 5 * time.Second
	mostDrops  = 5
	// An Event names a pod and the policies that isolate it once within dropStays; eventEvery and mostEvents bound those of all.
	dropStays  = time.Hour
	eventEvery = time.Minute
	mostEvents = 10
)

// logDrops logs flows that are dropped: each once while it continues.
func (o *Owner) logDrops(ctx context.Context) {
	var total uint64
	logged := map[string]bool{}
	events := firstDrops{at: map[string]time.Time{}, quota: rate.NewLimiter(rate.Every(eventEvery), mostEvents)}
	for wake.Sleep(ctx, dropsEvery) {
		if !o.c.Kernel.Standing() {
			select {
			case <-ctx.Done():
				return
			case <-o.stands:
			}
		}
		now := o.Dropped()
		sum := now["ingress"] + now["egress"]
		if sum == total {
			clear(logged)
			continue
		}
		total = sum
		counts, err := o.c.Kernel.Counts(true)
		if err != nil {
			continue
		}
		before, more := logged, 0
		logged = map[string]bool{}
		for _, x := range flows(o.InForce(), counts) {
			key := fmt.Sprint(x.From, x.To, x.Protocol, x.Port)
			if logged[key] = before[key]; logged[key] {
				continue
			}
			if events.first(x) {
				o.c.Warn("MeshPolicyDropped", fmt.Sprintf("%s of pod %s is dropped by NetworkPolicy %s, which isolates it or denies that: the first packets were from %s to %s, %s port %d; "+
					"let a policy accept that, or do nothing if it is meant", x.Direction, x.Pod, wording.List(x.Policies), x.From, x.To, x.Protocol, x.Port))
			}
			if logged[key] = true; len(logged) > mostDrops {
				more++
				continue
			}
			o.c.Log.Info("dropped by NetworkPolicy", "from", x.From, "to", x.To, "protocol", x.Protocol, "port", x.Port, "packets", x.Packets,
				"pod", x.Pod, "direction", x.Direction, "policies", x.Policies)
		}
		if more > 0 {
			o.c.Log.Info("more was dropped by NetworkPolicy: `edgemesh-agent policy` lists it", "flows", more)
		}
	}
}

// firstDrops knows which pods and policies an Event has named of late.
type firstDrops struct {
	at    map[string]time.Time
	quota *rate.Limiter
}

// first reports whether an Event is due.
func (f firstDrops) first(x control.PolicyFlow) bool {
	key := fmt.Sprint(x.Pod, x.Direction, x.Policies)
	maps.DeleteFunc(f.at, func(_ string, t time.Time) bool { return time.Since(t) >= dropStays })
	if _, named := f.at[key]; named || !f.quota.Allow() {
		return false
	}
	f.at[key] = time.Now()
	return true
}

// Findings are what is wrong with policies.
func (o *Owner) Findings() (out []findings.Finding) {
	f := o.InForce()
	rules, _ := o.rules()
	if f.Unread != nil && !f.Off {
		out = append(out, findings.Brokenf("network-policy", "bring the API, or the file of policies, back: what it says replaces the copy; or put the copy back and restart the agent; "+
			"`networkPolicy: \"off\"` in the membership runs pods without policies",
			"the copy of the NetworkPolicies cannot be read, and the host was restarted: pods of all namespaces are closed until policies can be read from their source: %v", f.Unread))
	}
	if f.Problem != nil {
		out = append(out, findings.Warningf("network-policy", "fix what it names; it is reread automatically", "the policies that were in force before still are: %v", f.Problem))
	}
	effect, say := "no policy would hold for them", findings.Warningf
	if len(rules.Namespaces) > 0 && !f.Off {
		effect, say = "they are closed, since no policy can be shown to open them", findings.Brokenf
	}
	o.mu.Lock()
	others, open := o.others, o.open
	o.mu.Unlock()
	if len(others) > 0 {
		so := effect
		if open != nil {
			so = fmt.Sprintf("no policy holds for them, since they cannot be shut (%v)", open)
		}
		out = append(out, say("network-policy", "take them off the bridge: ip link set NAME nomaster", "ports of "+conf.DefaultBridge+" belong to no pod of this network, so %s: %s", so, wording.List(first(others))))
	}
	if strays := o.straysLong(); len(strays) > 0 {
		out = append(out, say("network-policy", "set cniDataDir of the agent to dataDir of the plugin's configuration, or the other way round, where they differ, and make these pods again",
			o.c.DataDir+" has no record of pods on the bridge, so %s: %s", effect, wording.List(strays)))
	}
	if pods := o.closedLong(); len(pods) > 0 {
		out = append(out, findings.Brokenf("network-policy", "a file of policies must list its pods; from the API, fix what keeps the agent from reading them",
			"closed, since no source of policies has named them for a minute: %s", wording.List(pods)))
	}
	if len(f.Lacks) > 0 && !f.Off {
		var ports []string
		for _, l := range f.Lacks {
			ports = append(ports, l.Policy+": "+l.Port+" in "+directions[l.Direction])
		}
		slices.Sort(ports)
		out = append(out, findings.Notef("network-policy", "policies name ports that no container has, by name and protocol, of the pods here that they select (ingress), "+
			"or of any pod that is a peer (egress); these ports of their rules match nothing: %s", wording.List(first(slices.Compact(ports)))))
	}
	if f.Saving != nil {
		out = append(out, findings.Warningf("network-policy", "make room, or the file system writable; it is tried again automatically",
			"the policies in force could not be saved, so that a start without their source would enforce older ones: %v", f.Saving))
	}
	if f.Failure != nil && len(rules.Namespaces) > 0 {
		out = append(out, findings.Brokenf("network-policy", "fix the cause, or the policy that it names; `networkPolicy: \"off\"` in the membership runs pods without policies",
			"NetworkPolicies are not in force as written: %v", f.Failure))
	} else if why := o.c.Kernel.Partly(); why != "" && len(rules.Namespaces) > 0 {
		out = append(out, findings.Brokenf("network-policy", "load it, and list it in /etc/modules-load.d; `networkPolicy: \"off\"` in the membership runs pods without policies",
			"new pods in namespaces with NetworkPolicies are refused: %s", why))
	}
	return out
}

// first are the first ones of many.
func first(all []string) []string {
	if more := len(all) - mostDrops; more > 0 {
		return append(all[:mostDrops], fmt.Sprintf("%d more", more))
	}
	return all
}

// strayLong is how long a pod may have no record: one that is being deleted has none for an instant.
const strayLong = 10 * time.Second

// straysLong are the addresses of pods that have had no record for a while; the first ones of many.
func (o *Owner) straysLong() (out []string) {
	_, strays, err := o.look()
	if err != nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	since := map[netip.Addr]time.Time{}
	for _, a := range strays {
		if since[a] = o.strays[a]; since[a].IsZero() {
			since[a] = time.Now()
		}
		if time.Since(since[a]) >= strayLong {
			out = append(out, a.String())
		}
	}
	o.strays = since
	slices.Sort(out)
	return first(out)
}

// closedLong are pods that have been closed for a minute, for want of a source that names them; the first ones of many.
func (o *Owner) closedLong() (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pod := range slices.Sorted(maps.Keys(o.closed)) {
		if time.Since(o.closed[pod]) >= time.Minute {
			out = append(out, pod)
		}
	}
	return first(out)
}

// Explain says what policies do to packets from one address to a pod's; from may be invalid: what applies to it. Of another node's pod it
// says what policies of pods here have dropped that they sent there.
func (o *Owner) Explain(from, to netip.Addr) findings.Finding {
	f := o.InForce()
	place, applies := f.At[to]
	if !applies {
		sent := slices.DeleteFunc(o.Status(to.String()).Flows, func(x control.PolicyFlow) bool { return x.To != to.String() })
		return findings.Okayf("policy", "no NetworkPolicy of this node applies to %s%s", to, lately(sent))
	}
	protocol := byte(1)
	if to.Is6() {
		protocol = 58
	}
	if pass, by, d := f.Verdict(policy.Packet{Src: from, Dst: to, Protocol: protocol}); from.IsValid() && !pass {
		return findings.Brokenf("policy", "let a NetworkPolicy accept it, or do nothing if that is meant; `edgemesh-agent policy "+place.Pod+"` there says more",
			"NetworkPolicy drops what %s sends to %s, which is %s: its %s is isolated by %s, and none of them accepts that", from, to, place.Pod, directions[d], wording.List(by))
	}
	var parts []string
	for d, name := range place.Chains {
		if name == policy.Closed {
			parts = append(parts, directions[d]+" is closed, since no source has named the pod yet")
		} else if name != "" {
			parts = append(parts, directions[d]+" is isolated by "+wording.List(f.Chains[name].Policies))
		}
	}
	return findings.Okayf("policy", "%s is %s: %s; its own node always reaches it%s", to, place.Pod, wording.List(parts), lately(o.Status(place.Pod).Flows))
}

// lately names the flow of which most packets were dropped, "" if none were.
func lately(all []control.PolicyFlow) string {
	if len(all) == 0 {
		return ""
	}
	x := all[0]
	return fmt.Sprintf("; dropped within the last minute: %s to %s, %s port %d, %s of %s by %s", x.From, x.To, x.Protocol, x.Port, x.Direction, x.Pod, wording.List(x.Policies))
}
