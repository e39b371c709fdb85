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

	"edgemesh/agent/keep"
	"edgemesh/agent/kube/api"
	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
	"edgemesh/internal/wake"
)

// Config says how to reach the API and who we are there.
type Config struct {
	Kubeconfig string // path, "" for in-cluster access
	Server     string // URL that replaces the kubeconfig's or the pod's, "" for theirs
	ReadOnly   bool   // only read, as relays do: no own MeshNode, no NodeName
	Keep       bool   // another network plugin has the pods of this node

	NodeName     string
	PeerID       mesh.PeerID
	AgentVersion string
	StateDir     string // holds the snapshot (which the caller saves) and kube.json
	Log          *slog.Logger
}

// Source is the membership as the API of a cluster has it. Call Start, then Watch,
// one after the other, each from one goroutine. doc.go says who owns what.
type Source struct {
	cfg    Config
	c      *client
	prover *prover
	tune   tuning
	known  *known // of the goroutine in Start or Watch

	annotations atomic.Pointer[map[string]string] // of the own Node, those of network plugins
	serving     chan error                        // latest of SetServing
	relay       chan []string                     // latest of SetRelay
}

// tuning are the times that tests shorten.
type tuning struct {
	debounce  time.Duration // changes within it make one State
	allocator time.Duration // how long the cluster's allocator has for a new Node
	kick      time.Duration // a deleted MeshNode of our own comes back after it
	patience  time.Duration // a first start accepts unproved lists after it
	sustain   time.Duration // a node that stops serving says so after it
}

func defaultTuning() tuning {
	return tuning{debounce: 50 * time.Millisecond, allocator: 3 * time.Second, kick: 5 * time.Second, patience: 15 * time.Second, sustain: 10 * time.Second}
}

// New checks the access to the API, without using it. The error wraps ErrConfig.
func New(cfg Config) (*Source, error) { return newSource(cfg, processEnvironment()) }

func newSource(cfg Config, env environment) (*Source, error) {
	access, err := env.access(cfg.Kubeconfig, cfg.Server)
	if err != nil {
		return nil, err
	}
	program := "edgemesh-agent"
	if cfg.ReadOnly {
		cfg.NodeName, program = "", "edgemesh-relay"
	} else if err := mesh.CheckNodeName(cfg.NodeName); err != nil {
		return nil, fmt.Errorf("%w: node name: %w", ErrConfig, err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c, err := newClient(access, program+"/"+cmp.Or(cfg.AgentVersion, "dev"))
	if err != nil {
		return nil, err
	}
	if cfg.ReadOnly && c.plain() && !loopback(c.base.Hostname()) {
		return nil, fmt.Errorf("%w: server %s: without TLS everybody on the way could change who the members are; use https, or run a relay without access to the API (joinSecretFile)", ErrConfig, c.base)
	}
	return &Source{
		cfg: cfg, c: c, tune: defaultTuning(), serving: make(chan error, 1), relay: make(chan []string, 1),
		prover: &prover{c: c, node: cfg.NodeName, readOnly: cfg.ReadOnly},
		known:  newKnown(cfg),
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
	if !errors.Is(err, fs.ErrNotExist) {
		warning = fmt.Errorf("%w\nasking the API instead", err)
	}
	if err := (memory{}).save(s.cfg.StateDir); err != nil {
		return mesh.State{}, warning, err
	}
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	s.Watch(run, func(m mesh.State) { state = m; cancel() }, func(err error) {
		s.cfg.Log.Warn("waiting for the cluster's membership", "err", err)
	})
	if !s.known.have {
		return mesh.State{}, warning, fmt.Errorf("membership from the API: %w", ctx.Err())
	}
	return s.known.last, warning, nil
}

// usable checks that a snapshot belongs to this node.
func (s *Source) usable(snap mesh.State) error {
	n, ok := nodesByName(snap.Nodes)[s.cfg.NodeName]
	switch {
	case s.cfg.ReadOnly:
		return nil
	case !ok:
		return fmt.Errorf("the snapshot is not of node %s", s.cfg.NodeName)
	case n.PeerID != s.cfg.PeerID:
		return fmt.Errorf("the snapshot has peer ID %s for this node, its key is %s", n.PeerID, s.cfg.PeerID)
	}
	return nil
}

// SetServing tells the API whether this node's pod network works: nil for yes,
// or why not; a failure is passed on once it has lasted for 10 s. Before the first
// call the API is told nothing.
func (s *Source) SetServing(err error) { latest(s.serving, err) }

// SetRelay says where others reach this node as their relay, as multiaddrs without
// /p2p/…; without any, it is not a relay. If there are more than the API takes, the first
// ones count.
func (s *Source) SetRelay(addrs []string) {
	latest(s.relay, addrs[:min(len(addrs), api.MaxRelayAddresses)])
}

// Annotations are those of this node's Node that mention network plugins, as last
// received; nil before that. It may be called at any time.
func (s *Source) Annotations() map[string]string {
	if a := s.annotations.Load(); a != nil {
		return *a
	}
	return nil
}

// Watch calls onState with each changed membership, within a second of the API's event.
// It calls onErr when the membership cannot be followed, once per cause; the last State
// stays in force, and once the cause is gone, onState is called again. Both are called
// from Watch's goroutine. Watch returns when ctx ends and everything it started has ended.
func (s *Source) Watch(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	// Reflectors, registrar and loop run until ctx ends.
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer s.c.close()
	defer wg.Wait()
	defer cancel()

	in := make(chan any, 64)
	relist := map[string]wake.One{}
	for _, k := range slices.Concat(api.Kinds(), keep.Kinds()) {
		relist[k.Name] = wake.NewOne()
	}
	s.known.relist = func(name string) { relist[name].Wake() }
	follow := func(k api.Kind) {
		r := &reflector{kind: k, c: s.c, prover: s.prover, self: s.cfg.NodeName, out: in, relist: relist[k.Name]}
		wg.Go(func() { r.run(ctx) })
	}
	for _, k := range api.Kinds() {
		follow(k)
	}
	if s.c.plain() {
		wg.Go(func() {
			s.prover.pulse(ctx, func() {
				for _, list := range relist {
					list.Wake()
				}
			})
		})
	}
	l := &loop{known: s.known, tune: s.tune, onState: onState, onErr: onErr, follow: follow, annotations: &s.annotations}
	if !s.cfg.ReadOnly {
		reg := newRegistrar(s.c, s.cfg, s.tune, in, s.serving, s.relay)
		l.want = reg.want
		wg.Go(func() { reg.run(ctx) })
	}
	l.run(ctx, in)
}

// latest puts v into c, which holds one value, in place of a value not received yet.
func latest[T any](c chan T, v T) {
	for {
		select {
		case c <- v:
			return
		default:
		}
		select {
		case <-c:
		default:
		}
	}
}
