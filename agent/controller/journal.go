package controller

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/seldom"
	"edgemesh/internal/watchdog"
)

const (
	// bansEvery is how often the PodNetwork is read.
	bansEvery = 15 * time.Second
	// mostEvents may be recorded in a row, and eventEvery is when another one may: the log has all of them.
	mostEvents = 100
	eventEvery = 2 * time.Second
	// mostFormer is how many members that left are remembered.
	mostFormer = 4096
)

// journal records an Event, and a line in the log, of each node that joins, leaves, is banned or gets another key. What happens
// while no controller leads is in the agents' logs only. All of it belongs to the goroutine in run.
type journal struct {
	api      cluster
	loop     *watchdog.Loop
	log      *slog.Logger
	reported seldom.Log
	quota    *rate.Limiter

	members map[string]*api.MeshNode // nil: not listed yet
	former  map[string]string        // peer IDs of members that left, by name
	banned  map[string]bool          // members that are, by name; nil: not read yet
}

func newJournal(c cluster, loop *watchdog.Loop, log *slog.Logger) *journal {
	return &journal{api: c, loop: loop, log: log, former: map[string]string{}, quota: rate.NewLimiter(rate.Every(eventEvery), mostEvents)}
}

// run follows the MeshNodes until ctx ends.
func (j *journal) run(ctx context.Context) {
	in := make(chan news)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { follow(ctx, j.api, api.MeshNodes(), trimBinding, in) })
	bans := time.NewTicker(bansEvery)
	defer bans.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-in:
			j.hear(ctx, n)
		case <-bans.C:
			j.readBans(ctx)
		}
	}
}

// trimBinding leaves what binds a node to its key.
func trimBinding(o api.Object) {
	if m, ok := o.(*api.MeshNode); ok {
		m.Meta = api.Meta{Name: m.Meta.Name, UID: m.Meta.UID, ResourceVersion: m.Meta.ResourceVersion, OwnerReferences: m.Meta.OwnerReferences}
		m.Status = api.MeshNodeStatus{}
	}
}

// hear takes what the API says of MeshNodes.
func (j *journal) hear(ctx context.Context, n news) {
	ctx, end := j.loop.Begin(ctx)
	defer end()
	switch {
	case n.err != nil:
		if j.reported.Due("follow") {
			j.log.Warn("cannot follow the MeshNodes: no Event names who joins or leaves; retrying", "err", n.err)
		}
	case n.all && j.members == nil:
		j.members = bindings(n.list)
	case n.all:
		now := bindings(n.list)
		for _, name := range slices.Sorted(maps.Keys(j.members)) {
			if now[name] == nil {
				j.take(ctx, client.Event{What: client.Deleted, Object: j.members[name]})
			}
		}
		for _, name := range slices.Sorted(maps.Keys(now)) {
			j.take(ctx, client.Event{What: client.Added, Object: now[name]})
		}
	default:
		j.take(ctx, n.event)
	}
}

func bindings(list []api.Object) map[string]*api.MeshNode {
	out := map[string]*api.MeshNode{}
	for _, o := range list {
		if m, ok := o.(*api.MeshNode); ok {
			out[m.Meta.Name] = m
		}
	}
	return out
}

// take records what a change of a MeshNode means.
func (j *journal) take(ctx context.Context, e client.Event) {
	m, ok := e.Object.(*api.MeshNode)
	if !ok {
		return
	}
	name, was := m.Meta.Name, j.members[m.Meta.Name]
	if e.What == client.Deleted {
		if was != nil && was.Meta.UID == m.Meta.UID {
			delete(j.members, name)
			for any := range j.former {
				if len(j.former) < mostFormer {
					break
				}
				delete(j.former, any)
			}
			j.former[name] = was.Spec.PeerID
			j.record(ctx, was, false, "MeshMemberLeft", "left the pod network")
		}
		return
	}
	j.members[name] = m
	before := j.former[name]
	if was != nil {
		before = was.Spec.PeerID
	}
	delete(j.former, name)
	switch {
	case before != "" && before != m.Spec.PeerID:
		j.record(ctx, m, true, "MeshKeyChanged", "has another key than before, "+before+": if the node was not installed again, ban its name")
	case was == nil:
		j.record(ctx, m, false, "MeshMemberJoined", "joined the pod network")
	}
}

// readBans reads whom the PodNetwork bans.
func (j *journal) readBans(ctx context.Context) {
	ctx, end := j.loop.Begin(ctx)
	defer end()
	var n api.PodNetwork
	err := j.api.Get(ctx, api.PodNetworks().Path(api.NetworkName), &n)
	if err != nil || j.members == nil {
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil && j.reported.Due("bans") {
			j.log.Warn("cannot read the PodNetwork: no Event names who is banned; retrying", "err", err)
		}
		return
	}
	now := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(j.members)) {
		m := j.members[name]
		if !slices.Contains(n.Spec.Banned, name) && !slices.Contains(n.Spec.Banned, m.Spec.PeerID) {
			continue
		}
		now[name] = true
		if j.banned != nil && !j.banned[name] {
			j.record(ctx, m, true, "MeshMemberBanned", "is banned: agents and relays refuse it")
		}
	}
	j.banned = now
}

// record writes the Event and the line.
func (j *journal) record(ctx context.Context, m *api.MeshNode, warning bool, reason, text string) {
	level, kind := slog.LevelInfo, "Normal"
	if warning {
		level, kind = slog.LevelWarn, "Warning"
	}
	j.log.Log(ctx, level, "node "+text, "node", m.Meta.Name, "peer", m.Spec.PeerID)
	if !j.quota.Allow() {
		return
	}
	node := api.Meta{Name: m.Meta.Name}
	for _, o := range m.Meta.OwnerReferences {
		node.UID = o.UID
	}
	e := api.NodeEvent(node, "edgemesh-controller", kind, reason, fmt.Sprintf("%s, peer ID %s, %s", m.Meta.Name, m.Spec.PeerID, text))
	var ignored struct{}
	if err := j.api.Create(ctx, api.EventsPath, e, &ignored); err != nil && j.reported.Due("event") {
		j.log.Warn("cannot record Events about members; the log has all of them", "err", err)
	}
}
