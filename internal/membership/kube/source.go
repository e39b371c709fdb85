package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/wake"
)

// Source is the membership as the API of a cluster has it. Call Start, then Watch,
// one after the other, each from one goroutine. doc.go says who owns what.
type Source struct {
	cfg     Config
	c       *client.Client
	prover  *prover
	tune    tuning
	known   *known  // of the goroutine in Start or Watch
	reports reports // likewise
	confirm *confirmation
	also    followers

	annotations atomic.Pointer[map[string]string] // of the own Node, those of network plugins
	leaderless  atomic.Pointer[string]            // the controllers' Lease, if nobody renews it
	serving     chan error                        // latest of SetServing
	relay       chan []string                     // latest of SetRelay
	place       chan api.Place                    // latest of SetPlace
	healthy     chan [2]string                    // latest of SetHealthy
	warnings    chan [2]string                    // of Warn: reasons and messages
}

// New checks the access to the API, without using it. The error wraps ErrConfig.
func New(cfg Config) (*Source, error) {
	program := "edgemesh-agent"
	if cfg.ReadOnly {
		cfg.NodeName, program = "", "edgemesh-relay"
	} else if err := mesh.CheckNodeName(cfg.NodeName); err != nil {
		return nil, fmt.Errorf("%w: node name: %w", ErrConfig, err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c, err := client.New(cfg.Access, program+"/"+cmp.Or(cfg.AgentVersion, "dev"), cfg.Proxy)
	if err != nil {
		return nil, err
	}
	if cfg.ReadOnly && c.Plain() && !c.Local() {
		return nil, fmt.Errorf("%w: server %s: without TLS everybody on the path could change who the members are; use https, or run a relay without access to the API (joinSecretFile)", ErrConfig, c.URL())
	}
	return &Source{
		cfg: cfg, c: c, tune: defaultTuning(), serving: make(chan error, 1), relay: make(chan []string, 1), place: make(chan api.Place, 1), healthy: make(chan [2]string, 1), warnings: make(chan [2]string, 8),
		prover: &prover{c: c, node: cfg.NodeName, readOnly: cfg.ReadOnly, gather: gather},
		known:  newKnown(cfg), confirm: newConfirmation(), reports: reports{troubles: map[string]error{}},
	}, nil
}

// Start returns the membership to begin with. With a snapshot that is immediate,
// whether or not the API can be reached; Watch continues from there. Without one
// it joins the cluster and returns when the API has given a complete membership
// with this node and its blocks in it, or ctx's error. The warning says what
// is wrong with the snapshot.
func (s *Source) Start(ctx context.Context) (state mesh.State, warning, err error) {
	snap, err := snapshot.Load(s.cfg.StateDir)
	if err == nil {
		err = s.usable(snap)
	}
	if err == nil {
		s.known.begin(snap, loadMemory(s.cfg.StateDir))
		return snap, nil, nil
	}
	if errors.Is(err, ErrConfig) {
		return mesh.State{}, nil, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		warning = fmt.Errorf("%w\nthe API is read instead", err)
	}
	if err := (memory{}).save(s.cfg.StateDir); err != nil {
		return mesh.State{}, warning, err
	}
	run, cancel := context.WithCancel(ctx)
	causes := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { s.logWaiting(run, causes) })
	s.Watch(run, func(m mesh.State) { state = m; cancel() }, func(err error) {
		wake.Latest(causes, err)
		if s.cfg.Waits != nil {
			s.cfg.Waits(err)
		}
	})
	if !s.known.have {
		return mesh.State{}, warning, fmt.Errorf("membership from the API: %w", ctx.Err())
	}
	return s.known.last, warning, nil
}

// lasting is how many seconds of a first start are normal: a node joins within 2 s, on a KubeEdge edge, which the controller
// enrolls, within 6 s, and at the latest once unproved lists are accepted (tuning.patience).
const lasting = 20

// logWaiting logs why a first start waits. The cause that is left after the normal time is a warning, as is each later one.
func (s *Source) logWaiting(ctx context.Context, causes <-chan error) {
	second := time.NewTicker(time.Second) // counted, so that no time counts in which the process was stopped
	defer second.Stop()
	level, seconds := slog.LevelInfo, 0
	var cause error
	for {
		select {
		case <-ctx.Done():
			return
		case <-second.C:
			if seconds++; seconds != lasting {
				continue
			}
			level = slog.LevelWarn
		case cause = <-causes:
		}
		if cause != nil {
			s.cfg.Log.Log(ctx, level, "waiting for the cluster's membership", "err", cause)
		}
	}
}

// usable checks that a snapshot belongs to this node.
func (s *Source) usable(snap mesh.State) error {
	n, ok := mesh.ByName(snap.Nodes)[s.cfg.NodeName]
	key := slices.IndexFunc(snap.Nodes, func(n mesh.Node) bool { return n.PeerID == s.cfg.PeerID })
	switch {
	case s.cfg.ReadOnly:
		return nil
	case key >= 0 && snap.Nodes[key].Name != s.cfg.NodeName:
		return fmt.Errorf("%w: nodeName (or $NODE_NAME) is %s, but this node's key is that of the member %s: correct it; if this machine is %[2]s from now on, remove %[4]s/%s",
			ErrConfig, s.cfg.NodeName, snap.Nodes[key].Name, s.cfg.StateDir, snapshot.File)
	case !ok:
		return fmt.Errorf("the snapshot is not of node %s", s.cfg.NodeName)
	case n.PeerID != s.cfg.PeerID:
		return fmt.Errorf("the snapshot has peer ID %s for this node, its key is %s", n.PeerID, s.cfg.PeerID)
	}
	return nil
}

// Contact is what came of this node's requests to the API.
func (s *Source) Contact() client.Contact { return client.ContactOf(s.c) }

// Warn records an event about this node's Node, as `kubectl describe node` shows it. One is forgotten while too many wait, and
// if the API does not take it.
func (s *Source) Warn(reason, message string) {
	select {
	case s.warnings <- [2]string{reason, message}:
	default:
	}
}

// SetServing reports to the API whether this node's pod network works: nil for yes,
// or why not; a failure is passed on once it has lasted for 10 s. Before the first
// call nothing is reported.
func (s *Source) SetServing(err error) { wake.Latest(s.serving, err) }

// SetRelay says where others reach this node as their relay, as multiaddrs without
// /p2p/…; without any, it is not a relay. If there are more than the API takes, the first
// ones count.
func (s *Source) SetRelay(addrs []string) {
	wake.Latest(s.relay, addrs[:min(len(addrs), api.MaxRelayAddresses)])
}

// SetPlace says which mesh addresses this node has, and which NAT is before it.
func (s *Source) SetPlace(p api.Place) { wake.Latest(s.place, p) }

// SetHealthy reports what is broken on this node, as reason and message of its MeshNode's condition Healthy; no reason: nothing is.
func (s *Source) SetHealthy(reason, message string) {
	wake.Latest(s.healthy, [2]string{reason, message})
}

// Annotations are those of this node's Node that mention network plugins, as last
// received; nil before that. It may be called at any time.
func (s *Source) Annotations() map[string]string {
	if a := s.annotations.Load(); a != nil {
		return *a
	}
	return nil
}

// Leaderless is the controllers' Lease that nobody renews, "" if a controller does, or none has run yet.
func (s *Source) Leaderless() string {
	if l := s.leaderless.Load(); l != nil {
		return *l
	}
	return ""
}

// Confirmed is closed once new pods may be given addresses of the blocks in force: the API has named this node's blocks, or
// it does not answer now. It is of no use before Watch.
func (s *Source) Confirmed() <-chan struct{} { return s.confirm.done }

// Watch calls onState with each changed membership, within a second of the API's event.
// It calls onErr when the membership cannot be followed, once per cause; the last State
// stays in force, and once the cause is gone, onState is called again. Both are called
// from Watch's goroutine. Watch returns when ctx ends and everything it started has ended.
func (s *Source) Watch(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	// Reflectors, registrar and loop run until ctx ends.
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer s.c.Close()
	defer wg.Wait()
	defer cancel()

	in := make(chan any, 64)
	relist := map[string]wake.One{}
	for _, k := range slices.Concat(api.Kinds(), keep.Kinds(), []api.Kind{api.NodeRecords(), {Name: selfKey}}) {
		relist[k.Name] = wake.NewOne()
	}
	s.known.relist = func(name string) { relist[name].Wake() }
	s.known.polled = s.c.ListNodes()
	follow := func(k api.Kind) (stop func()) {
		ctx, end := context.WithCancel(ctx)
		r := &reflector{kind: k, c: s.c, prover: s.prover, self: s.cfg.NodeName, out: in, relist: relist[k.Name]}
		wg.Go(func() { r.run(ctx) })
		if k.Name == api.NodeRecords().Name && !s.cfg.ReadOnly {
			wg.Go(func() { r.readSelf(ctx, relist[selfKey]) })
		}
		return end
	}
	for _, k := range api.Kinds() {
		if !isNodes(k) {
			follow(k)
		}
	}
	lease := make(chan string, 1)
	leases := &lessor{c: client.Brief(s.c), prover: s.prover, out: in, name: lease, again: wake.NewOne(), leaderless: &s.leaderless}
	wg.Go(func() { leases.run(ctx) })
	nodes := &voucher{c: client.Brief(s.c), out: in, open: make(chan map[string]int, 1)}
	s.known.disputes.read = func(open map[string]int) { wake.Latest(nodes.open, open) }
	wg.Go(func() { nodes.run(ctx) })
	var agreed *atomic.Pointer[time.Time]
	if s.c.Cache() {
		agreed = new(atomic.Pointer[time.Time])
		sessions := passing
		if s.c.ListNodes() {
			sessions = sessionsOf(edgeCore, s.cfg.LocalUID)
		}
		wg.Go(func() {
			s.prover.watchOutages(ctx, sessions, func(missed bool) {
				at := agreed.Load()
				for name, list := range relist {
					if missed || name != selfKey && (at == nil || time.Since(*at) > agreement) {
						list.Wake()
					}
				}
				s.also.wake()
			})
		})
	}
	l := &loop{known: s.known, tune: s.tune, onState: onState, onErr: onErr, annotations: &s.annotations, named: s.confirm.end, reports: &s.reports,
		source: steering{follow: follow, stops: map[string]func(){}, lease: lease, depends: leases.again, agreed: agreed}}
	if !s.cfg.ReadOnly {
		wg.Go(func() { s.confirm.check(ctx, s.prover.review) })
		reg := newRegistrar(s.c, s.cfg, s.tune, in, s.serving, s.relay, s.place)
		reg.warnings, reg.healthy = s.warnings, s.healthy
		l.want = reg.want
		wg.Go(func() { reg.run(ctx) })
	}
	l.run(ctx, in)
}
