package read

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/podgroups"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

// Patience: how long what is missing is waited for, since when, and what becomes of it then.
const (
	// together is for more changes, since the first one: then all of them are decided on.
	together = 20 * time.Millisecond
	// groupPatience is for a PolicyGroup or a namespace's policies, since they were first needed or all of them were known last:
	// until then pods keep their former rules, then the peers that are missing are closed.
	groupPatience = 1500 * time.Millisecond
	// unprovedPatience is for a proof of lists, since the start: then they count without one where no rule is in force.
	unprovedPatience = 15 * time.Second
	// closePatience is for what cannot be read, since it was needed: then pods that were never judged are closed.
	closePatience = 15 * time.Second
	// lasting is for the same, and for whatever the API lacks at a start or during an upgrade: then it is a finding.
	lasting = time.Minute
)

// waits knows since when something is waited for. What a decision does not ask for ends.
type waits struct {
	now   time.Time
	since map[string]time.Time // before
	asked map[string]time.Time
	next  time.Duration // until the first patience ends, 0 for never
}

// over reports whether something has been waited for longer than patience.
func (w *waits) over(patience time.Duration, what string) bool {
	since, waited := w.since[what]
	if !waited {
		since = w.now
	}
	w.asked[what] = since
	return w.past(since, patience)
}

func (w *waits) past(since time.Time, patience time.Duration) bool {
	left := since.Add(patience).Sub(w.now)
	if left > 0 && (w.next == 0 || left < w.next) {
		w.next = left
	}
	return left <= 0
}

// memory is what a decision hands to the next one.
type memory struct {
	began    time.Time
	first    bool // all pods are closed since nothing was ever known here, and nothing was compiled
	off      bool // nothing is to be enforced, or another program does
	last     policy.Rules
	lastFrom string                     // "": nothing was compiled since the start
	needs    map[string]bool            // groups, by each of their names
	held     map[string][2]bool         // namespaces that have policies until that is disproved, and how these isolate
	whole    map[string][]policy.Member // of groups, when all of them were known last
	since    map[string]time.Time       // what is waited for
	status   Status
}

// seen is what a decision depends on.
type seen struct {
	memory
	node    string
	state   mesh.State
	local   map[netip.Addr]string // this node's pods, NAMESPACE/NAME by address; with a controller
	follows map[string]*followed
	groups  groups
	peers   *podgroups.Peers // without a controller
	inForce bool             // there are rules
}

// decision says what is to be read, and what comes into force.
type decision struct {
	seen
	waits     waits
	proofless bool // lists count that nothing proves
	follow    []api.Kind
	given     *enforce.Given // nil: what is in force stays
}

// decide compiles what was seen into rules, and says when to look again whatever happens.
func decide(s seen, now time.Time) decision {
	d := decision{seen: s, waits: waits{now: now, since: s.since, asked: map[string]time.Time{}}}
	d.held, d.whole = maps.Clone(s.held), maps.Clone(s.whole)
	d.proofless = (s.first && s.peers != nil || !s.inForce) && d.waits.past(s.began, unprovedPatience)
	switch off := s.state.NetworkPolicy == mesh.PolicyOff; {
	case off:
		d.off, d.status = true, Status{Off: true}
	case s.peers != nil:
		d.alone()
	case s.state.PolicyNamespaces == nil:
		d.off, d.status = false, Status{Trouble: errors.New("a controller is configured, and the API has not said yet which namespaces have NetworkPolicies: " +
			"it does not answer, or no controller runs of this release")}
		d.release()
	default:
		d.withController()
	}
	d.since = d.waits.asked
	return d
}

// withController compiles this node's policies with the groups that the controller has compiled.
func (d *decision) withController() {
	own := d.own(podgroups.Pods(d.node))
	spaces := map[string]bool{}
	for _, pod := range d.local {
		spaces[namespaceOf(pod)] = true
	}
	for _, p := range own {
		spaces[p.Meta.Namespace] = true
	}
	d.believe(spaces)
	if d.lastFrom == "" { // those that come back without the API have nothing else than what is in force, until pods are read
		for pod := range d.last.Pods {
			spaces[namespaceOf(pod)] = true
		}
	}
	_, every := d.held[policy.EveryNamespace] // too many to be named
	for _, namespace := range slices.Sorted(maps.Keys(spaces)) {
		f := d.follows[keyOf(podgroups.Policies(namespace))]
		if _, held := d.held[namespace]; held || every || f != nil && len(f.items) > 0 { // the last: it ends by its own word
			d.follow = append(d.follow, podgroups.Policies(namespace))
		}
	}
	if len(d.follow) > 0 {
		d.follow = append(d.follow, podgroups.Pods(d.node))
	}
	if err := d.complete(); err != nil {
		d.follow = append(d.follow, groupKinds(d.needs)...)
		d.unready(err)
		return
	}
	status := Status{Invalid: map[string]error{}}
	status.Engine, status.Passer = engine(own, d.state.EnforcerNamespaces)
	unread := d.unread(&status)
	var all []policy.Policy
	for _, k := range d.follow {
		for _, p := range each[*podgroups.Policy](d.follows[keyOf(k)]) {
			parsed, err := p.Parse()
			if all = append(all, parsed); err != nil {
				status.Invalid[parsed.Key()] = err
			}
		}
	}
	needs, missing, unknown := map[string]bool{}, map[string]bool{}, map[string]bool{}
	judged := slices.DeleteFunc(pods(own), func(p policy.Pod) bool { return unread[p.Namespace] })
	rules := policy.Compile(all, judged, func(g policy.Group) []policy.Member {
		id, former := g.ID(), policy.Former(g.ID())
		needs[id], needs[former] = true, true
		members, complete := d.members(id, g.Selector())
		if !complete { // a controller before knows the former name alone
			if all, whole := d.members(former, g.Selector()); whole {
				members, complete = all, true
			}
		}
		if complete {
			d.whole[id] = members
			return members
		}
		over := d.waits.over(groupPatience, "group "+id)
		if over {
			status.Trouble = errors.New("a PolicyGroup that a policy needs is not there as a whole: its other peers are closed until it is; " +
				"check that a controller runs, and whether its log names policies that are over its bounds")
		}
		whole, known := d.whole[id]
		if missing[id] = !known; known && !over {
			return policy.Sorted(slices.Concat(whole, members))
		}
		unknown[id] = true
		return members
	})
	d.needs = needs
	maps.DeleteFunc(d.whole, func(id string, _ []policy.Member) bool { return !needs[id] })
	d.follow = append(d.follow, groupKinds(needs)...)
	if err := d.complete(); err != nil {
		d.unready(err)
		return
	}
	d.closing(&rules)
	if every {
		rules.SetExcept(slices.DeleteFunc(slices.Sorted(maps.Keys(spaces)), func(namespace string) bool { return unread[namespace] }))
	}
	d.former(rules, own, unread, missing)
	rules.Without(unknown)
	d.bring(rules, "the controller", status)
}

// alone compiles all policies with all pods.
func (d *decision) alone() {
	all, errs := d.peers.Policies()
	d.hold(policy.Isolated(all))
	d.follow = []api.Kind{podgroups.Policies("")}
	var own map[string]*podgroups.Pod
	if len(all) > 0 {
		d.follow = append(d.follow, podgroups.Namespaces(), podgroups.Pods(""))
		own = d.own(podgroups.Pods(""))
	}
	if err := d.complete(); err != nil {
		d.unready(err)
		return
	}
	rules := policy.Compile(all, pods(own), func(g policy.Group) []policy.Member { return d.peers.Members(g.ID()) })
	status := Status{Invalid: map[string]error{}}
	for key, why := range d.peers.Over() {
		status.Invalid[key] = errors.New(why)
	}
	maps.Copy(status.Invalid, errs)
	status.Engine, status.Passer = engine(own, d.state.EnforcerNamespaces)
	d.bring(rules, "the API", status)
	d.held = maps.Clone(rules.Namespaces)
}

// complete says why what is followed does not count yet, nil if it does. PolicyGroups and namespaces' policies count one by one once
// rules were compiled.
func (d *decision) complete() error {
	for _, k := range d.follow {
		one := k.Name == api.PolicyGroups().Name || k.Namespace != ""
		if one && d.lastFrom != "" || k.Namespace != "" && d.waits.past(d.began, unprovedPatience) {
			continue
		}
		if err := d.follows[keyOf(k)].usable(d.proofless); err != nil {
			return err
		}
	}
	return nil
}

// refused says what cannot be read any longer that was.
func (d *decision) refused() error {
	for _, k := range d.follow {
		if f := d.follows[keyOf(k)]; f != nil && f.refused != nil {
			return f.refused
		}
	}
	return nil
}

// hold notes which namespaces have policies.
func (m memory) hold(more map[string][2]bool) {
	for name, isolates := range more {
		if isolates != [2]bool{} {
			m.held[name] = isolates
		}
	}
}

// believe notes what the PodNetwork says of namespaces: what it lacks has no policies only where that is proved, and for the namespaces of
// this node's pods by the policies themselves.
func (s seen) believe(spaces map[string]bool) {
	for name, text := range s.state.PolicyNamespaces {
		isolates := [2]bool{strings.Contains(text, "Ingress"), strings.Contains(text, "Egress")}
		if !s.state.PolicyProved {
			isolates = either(isolates, s.held[name])
		}
		s.hold(map[string][2]bool{name: isolates})
	}
	for name := range s.held {
		if s.state.PolicyNamespaces[name] != "" {
			continue
		}
		gone := s.state.PolicyProved
		if spaces[name] {
			f := s.follows[keyOf(podgroups.Policies(name))]
			gone = f != nil && f.proved && len(f.items) == 0
		}
		if gone {
			delete(s.held, name)
		}
	}
}

// closing adds to rules where policies may be that are not in them.
func (m memory) closing(rules *policy.Rules) {
	for name, isolates := range m.held {
		rules.Namespaces[name] = either(rules.Namespaces[name], isolates)
	}
}

// unread are the namespaces whose policies are not known yet: nothing is compiled for their pods, and no other pod waits.
func (d *decision) unread(s *Status) map[string]bool {
	out := map[string]bool{}
	for _, k := range d.follow {
		if k.Namespace == "" {
			continue
		}
		if err := d.follows[keyOf(k)].usable(d.proofless); err != nil {
			if out[k.Namespace] = true; d.waits.over(groupPatience, "namespace "+k.Namespace) {
				s.Trouble = fmt.Errorf("the policies of namespace %s are not known: %w", k.Namespace, err)
			}
		}
	}
	return out
}

// members are those of a group, and whether these are all of them, as they are now.
func (d *decision) members(id, selector string) (out []policy.Member, complete bool) {
	out, complete = d.groups.members(id, selector)
	return out, complete && slices.ContainsFunc(slices.Collect(maps.Values(d.follows)), func(f *followed) bool {
		return f.kind.Name == api.PolicyGroups().Name && strings.Contains(f.kind.Selector, id) && f.refused == nil && f.usable(d.proofless) == nil
	})
}

// former leaves pods the chains that they have where their new ones need a group that is missing, all of which was never known, or where
// their namespace is unread: for a group as long as there is patience, from when that began, whatever changes meanwhile.
func (d *decision) former(rules policy.Rules, own map[string]*podgroups.Pod, unread, missing map[string]bool) {
	for pod, chains := range rules.Pods {
		was, there := d.last.Pods[pod]
		for i, name := range chains {
			lacks := slices.ContainsFunc(rules.Chains[name].Groups(), func(id string) bool { return missing[id] })
			if lacks && !d.waits.over(groupPatience, fmt.Sprint("pod ", pod, i)) && there && d.lastFrom != "" { // a start does not prolong it
				chains[i] = was[i]
				d.keep(rules, was[i])
			}
		}
		rules.Pods[pod] = chains
	}
	for _, p := range pods(own) {
		pod := p.Namespace + "/" + p.Name
		if was, there := d.last.Pods[pod]; there && unread[p.Namespace] {
			rules.Pods[pod] = was
			d.keep(rules, was[:]...)
		}
	}
}

// keep copies chains from the rules that are in force.
func (d *decision) keep(rules policy.Rules, chains ...string) {
	for _, name := range chains {
		if name == "" {
			continue
		}
		rules.Chains[name] = d.last.Chains[name]
		for _, id := range d.last.Chains[name].Groups() {
			if _, has := rules.Sets[id]; !has {
				rules.Sets[id] = d.last.Sets[id]
			}
		}
	}
}

// own are the pods of this node that are followed as k.
func (d *decision) own(k api.Kind) map[string]*podgroups.Pod {
	own := each[*podgroups.Pod](d.follows[keyOf(k)])
	maps.DeleteFunc(own, func(_ string, p *podgroups.Pod) bool { return p.Node != d.node })
	return own
}

// release opens what First has closed: the cluster's release of controller or chart has no policies in force.
func (d *decision) release() {
	if d.first {
		d.first, d.last, d.held = false, policy.Rules{}, map[string][2]bool{}
		d.given = &enforce.Given{From: "no source yet"}
	}
}

// unready notes why what was in force stays.
func (d *decision) unready(err error) {
	for what, since := range d.waits.since { // an interruption prolongs nothing
		d.waits.asked[what] = since
	}
	d.waits.past(d.began, unprovedPatience)
	if d.waits.over(lasting, unreadable) || !errors.Is(err, errWaits) && !errors.Is(err, errUnproved) {
		d.status = Status{Trouble: err, Engine: d.status.Engine}
	}
	if f := d.follows[keyOf(podgroups.Policies(""))]; f != nil && f.refused != nil {
		d.release()
	}
	if d.waits.over(closePatience, unreadable) {
		d.closeUnjudged()
	}
	if d.waits.next == 0 {
		d.waits.next = lasting
	}
}

// unreadable is what is waited for where nothing can be compiled.
const unreadable = "all that is read"

// closeUnjudged closes pods that were never judged: what there is cannot be read, and may close them.
func (d *decision) closeUnjudged() {
	rules := d.last
	rules.Namespaces = map[string][2]bool{}
	maps.Copy(rules.Namespaces, d.last.Namespaces)
	d.closing(&rules)
	// A right that is missing is the chart's of an older release: its policies were never in force.
	if d.refused() == nil && !maps.Equal(rules.Namespaces, d.last.Namespaces) {
		d.last = rules
		d.given = &enforce.Given{From: "policies that cannot be compiled yet", Rules: rules, Closes: true}
	}
}

// bring has rules enforced, unless another program does.
func (d *decision) bring(rules policy.Rules, from string, s Status) {
	if s.Trouble == nil {
		s.Trouble = d.refused()
	}
	d.status, d.off = s, s.Engine != ""
	if len(rules.Namespaces) == 0 {
		rules = policy.Rules{}
	}
	if from != d.lastFrom || !reflect.DeepEqual(rules, d.last) {
		d.last, d.lastFrom, d.first = rules, from, false
		d.given = &enforce.Given{From: from, Rules: rules}
	}
}

// pods are this node's, without addresses: those are in its own records.
func pods(own map[string]*podgroups.Pod) (out []policy.Pod) {
	for _, key := range slices.Sorted(maps.Keys(own)) {
		out = append(out, own[key].As)
	}
	return out
}

func either(a, b [2]bool) [2]bool { return [2]bool{a[0] || b[0], a[1] || b[1]} }

func namespaceOf(pod string) string {
	namespace, _, _ := strings.Cut(pod, "/")
	return namespace
}
