package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/seldom"
	"edgemesh/internal/watchdog"
)

// Sight is how the leader queries relays about nodes.
type Sight struct {
	Every  time.Duration // between two queries
	Unseen time.Duration // how long no relay may see a node before its MeshNode says so
}

// DefaultSight is that of every controller but those of tests.
func DefaultSight() Sight { return Sight{Every: 15 * time.Second, Unseen: 2 * time.Minute} }

const (
	// queryTime bounds one query.
	queryTime = 5 * time.Second
	// mostUnseen is how long a node may be unseen at most that contradicts.
	mostUnseen = time.Hour
	// readyType is the condition of a MeshNode that its agent writes, and unseen this controller's reason.
	readyType = "Ready"
	unseen    = "Unseen"
)

// answer is what a relay says of a node.
type answer int

const (
	silent answer = iota // it does not say
	away
	here
)

// sighting is what this leader knows of when relays saw one node. It begins without any.
type sighting struct {
	at       []peer.ID     // relays that saw it when it was seen last; none: no relay has, so all of them must say that they do not
	since    time.Time     // since when none of these has seen it, zero: one sees it, or it is not known
	version  string        // of its MeshNode then: whatever was written since is a sign of life
	patience time.Duration // how long it may be unseen, if that is longer than others may
}

// look takes what the relays say at a moment, and the version of the node's MeshNode. It reports whether the node has been
// unseen for longer than the limit. One relay that sees it is enough, and one that says nothing keeps anybody from knowing:
// so a single relay, or a member that is one, can at most make a node that is gone look alive.
func (s *sighting) look(now time.Time, says map[peer.ID]answer, version string, contradicted bool, limit time.Duration) bool {
	var seen, must []peer.ID
	for r, a := range says {
		if a == here {
			seen = append(seen, r)
		}
		if len(s.at) == 0 || slices.Contains(s.at, r) {
			must = append(must, r)
		}
	}
	if len(seen) > 0 {
		*s = sighting{at: seen}
		return false
	}
	if contradicted { // it wrote over what was said of it: it lives, and no relay sees it
		s.patience = min(2*max(s.patience, limit), mostUnseen)
	}
	if len(must) == 0 { // the relays where it was are no longer the cluster's
		s.at = nil
	}
	unknown := len(must) == 0 || slices.ContainsFunc(must, func(r peer.ID) bool { return says[r] == silent })
	if unknown || version != s.version {
		s.since = time.Time{}
	}
	s.version = version
	if unknown {
		return false
	}
	if s.since.IsZero() {
		s.since = now
	}
	return now.Sub(s.since) >= max(s.patience, limit)
}

// kubelet stands for a relay where Nodes are read instead: their lease ends without kubelet.
const kubelet = peer.ID("kubelet")

// trimReady leaves of a Node what its platform says of kubelet.
func trimReady(o api.Object) {
	n, ok := o.(*api.Node)
	if !ok {
		return
	}
	var ready []api.Condition
	if c := api.FindCondition(n.Status.Conditions, readyType); c != nil {
		ready = []api.Condition{{Type: c.Type, Status: c.Status}}
	}
	n.Meta = api.Meta{Name: n.Meta.Name, UID: n.Meta.UID, ResourceVersion: n.Meta.ResourceVersion}
	n.Spec, n.Status = api.NodeSpec{}, api.NodeStatus{Conditions: ready}
}

// sight writes Ready=Unknown into MeshNodes whose nodes no relay sees, or, without relays to query, whose kubelet is not heard.
// All of it belongs to the goroutine in run, and while relays are queried to those that it waits for.
type sight struct {
	Sight
	api      cluster
	loop     *watchdog.Loop
	log      *slog.Logger
	reported seldom.Log
	sees     func(ctx context.Context, relay, member peer.ID) (bool, error)
	relays   func() []peer.AddrInfo // nil: Nodes are read

	platform map[string]answer        // what Nodes say, by name
	nodes    map[string]*api.MeshNode // by UID, as all that follows
	known    map[string]*sighting
	stated   map[string]bool // those that were reported as unseen
	pace     pace            // of MeshNodes' changes
}

// writing is how often a node's agent writes its MeshNode: once a minute at most, its start and faults apart.
func writing() pace {
	return pace{every: 10 * time.Second, most: 30, says: "a node writes its MeshNode again and again, and every agent downloads it each time"}
}

// run looks until ctx ends.
func (s *sight) run(ctx context.Context) {
	s.known, s.stated = map[string]*sighting{}, map[string]bool{}
	in := make(chan news)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { follow(ctx, s.api, api.MeshNodes(), nil, in) })
	if s.relays == nil {
		reader.Go(func() { follow(ctx, s.api, api.Nodes(), trimReady, in) })
	}
	next := time.NewTicker(s.Every)
	defer next.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case n := <-in:
			err = n.err
			s.hear(ctx, n)
		case <-next.C:
			err = s.round(ctx)
		}
		if err != nil && ctx.Err() == nil && s.reported.Due("round") {
			s.log.Warn("cannot say whether the nodes are seen: Ready stays as it is; retrying", "err", err)
		}
	}
}

// hear takes what the API says of MeshNodes and Nodes.
func (s *sight) hear(ctx context.Context, n news) {
	_, end := s.loop.Begin(ctx)
	defer end()
	if n.err != nil {
		return
	}
	if n.kind.Name == api.Nodes().Name {
		s.hearNodes(n)
		return
	}
	if n.all {
		s.nodes = map[string]*api.MeshNode{}
		for _, o := range n.list {
			s.take(client.Added, o)
		}
		for uid := range s.known {
			if s.nodes[uid] == nil {
				s.take(client.Deleted, &api.MeshNode{Meta: api.Meta{UID: uid}})
			}
		}
		return
	}
	s.take(n.event.What, n.event.Object)
}

// hearNodes is hear for Nodes.
func (s *sight) hearNodes(n news) {
	if n.all {
		s.platform = map[string]answer{}
	}
	for _, o := range append(n.list, n.event.Object) {
		node, ok := o.(*api.Node)
		if !ok {
			continue
		}
		delete(s.platform, node.Meta.Name)
		if ready := api.FindCondition(node.Status.Conditions, readyType); ready != nil && n.event.What != client.Deleted {
			s.platform[node.Meta.Name] = map[bool]answer{true: away, false: here}[ready.Status == "Unknown"]
		}
	}
}

func (s *sight) take(what string, o api.Object) {
	m, ok := o.(*api.MeshNode)
	switch {
	case !ok:
	case what == client.Deleted:
		s.pace.forget(m.Meta.Name)
		delete(s.nodes, m.Meta.UID)
		delete(s.known, m.Meta.UID)
		delete(s.stated, m.Meta.UID)
	default:
		if what == client.Modified {
			s.pace.exceeded(m.Meta.Name, s.log)
		}
		s.nodes[m.Meta.UID] = m
	}
}

// round queries every MeshNode once.
func (s *sight) round(ctx context.Context) error {
	ctx, end := s.loop.Begin(ctx)
	defer end()
	var says map[string]map[peer.ID]answer
	if s.relays == nil {
		says = s.queryPlatform()
	} else if relays := s.relays(); len(relays) > 0 {
		says = s.query(ctx, relays)
	} else {
		return nil // no relay to query
	}
	var failed error
	for uid, m := range s.nodes {
		ready := api.FindCondition(m.Status.Conditions, readyType)
		unknown := ready != nil && ready.Status == "Unknown"
		if s.known[uid] == nil {
			s.known[uid] = &sighting{}
		}
		late := s.known[uid].look(time.Now(), says[uid], m.Meta.ResourceVersion, s.stated[uid] && !unknown, s.Unseen)
		if !unknown {
			delete(s.stated, uid)
		}
		if !late || unknown || ready == nil || ctx.Err() != nil {
			continue
		}
		if err := s.report(ctx, m, s.known[uid].since); err != nil {
			failed = fmt.Errorf("MeshNode %s: %w", m.Meta.Name, err)
			continue
		}
		s.stated[uid] = true
		s.log.Info("a node is not seen: Ready is Unknown", "node", m.Meta.Name)
	}
	return failed
}

// queryPlatform is query for Nodes.
func (s *sight) queryPlatform() map[string]map[peer.ID]answer {
	out := map[string]map[peer.ID]answer{}
	for uid, m := range s.nodes {
		out[uid] = map[peer.ID]answer{kubelet: s.platform[m.Meta.Name]} // silent without a Node
	}
	return out
}

// query queries every relay about every node.
func (s *sight) query(ctx context.Context, relays []peer.AddrInfo) map[string]map[peer.ID]answer {
	var mu sync.Mutex // a leaf: guards the answers
	out := map[string]map[peer.ID]answer{}
	var all sync.WaitGroup
	slots := make(chan struct{}, workers)
	for uid, m := range s.nodes {
		answers := map[peer.ID]answer{}
		out[uid] = answers
		id, err := peer.Decode(m.Spec.PeerID)
		for _, r := range relays {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				says := silent
				if err == nil {
					ctx, cancel := context.WithTimeout(ctx, queryTime)
					defer cancel()
					if sees, err := s.sees(ctx, r.ID, id); err == nil && sees {
						says = here
					} else if err == nil {
						says = away
					}
				}
				mu.Lock()
				defer mu.Unlock()
				answers[r.ID] = says
				watchdog.Step(ctx)
			})
		}
	}
	all.Wait()
	return out
}

// report writes Ready=Unknown since the moment when the node was last seen, unless the MeshNode has changed since it was read.
func (s *sight) report(ctx context.Context, m *api.MeshNode, since time.Time) error {
	since = since.UTC().Truncate(time.Second)
	message := "no relay of the PodNetwork sees this node: it is off, or without uplink"
	if s.relays == nil {
		message = "the node's kubelet is not heard, as its Node says: it is off, or without uplink"
	}
	conditions := slices.Clone(m.Status.Conditions)
	for i, c := range conditions {
		if c.Type == readyType {
			conditions[i] = api.Condition{Type: readyType, Status: "Unknown", Reason: unseen, LastTransitionTime: &since,
				Message: message}
		}
	}
	patch := map[string]any{"metadata": map[string]string{"uid": m.Meta.UID, "resourceVersion": m.Meta.ResourceVersion},
		"status": map[string]any{"conditions": conditions}}
	var got api.MeshNode
	return s.api.Patch(ctx, api.MeshNodes().Path(m.Meta.Name)+"/status", client.Merge, nil, patch, &got)
}
