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

	"edgemesh/agent/kube/api"
	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
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

// Source is the membership as the API of a cluster has it. Start, then Watch;
// one after the other, each from one goroutine.
type Source struct {
	cfg     Config
	c       *client
	prover  *prover
	stores  map[string]*store // by plural
	plugins map[string]*store // the same of other network plugins' kinds
	// annotations of the own Node, those of network plugins.
	annotations atomic.Pointer[map[string]string]
	serving     chan error    // latest of SetServing
	relay       chan []string // latest of SetRelay
	tune        tuning

	// The rest belongs to the goroutine that runs loop.
	cluster  string     // of the last proof, "" before the first
	saved    memory     // on the disk
	last     mesh.State // handed out last, or the snapshot
	have     bool
	kept     map[string]keptMember
	ids      map[string]objectIDs // of the members in last, by name
	troubles map[string]error     // by plural
	told     string               // problem reported last, "" when all is well
}

// keptMember is a member of the last State that the API does not list, as far as
// is known: its removal is not proved.
type keptMember struct {
	mesh.Node
	// retained: it is of another history of the API, no list can ever prove anything.
	retained bool
}

// tuning are the times that tests shorten.
type tuning struct {
	settle    time.Duration // changes within it make one State
	allocator time.Duration // how long the cluster's allocator has for a new Node
	kick      time.Duration // a deleted MeshNode of our own comes back after it
	hearsay   time.Duration // a first start goes without proof after it
	sustain   time.Duration // a node that stops serving says so after it
}

func defaultTuning() tuning {
	return tuning{settle: 50 * time.Millisecond, allocator: 3 * time.Second, kick: 5 * time.Second, hearsay: 15 * time.Second, sustain: 10 * time.Second}
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
	s := &Source{
		cfg: cfg, c: c, tune: defaultTuning(), serving: make(chan error, 1), relay: make(chan []string, 1),
		prover:   &prover{c: c, node: cfg.NodeName, readOnly: cfg.ReadOnly},
		stores:   map[string]*store{},
		plugins:  map[string]*store{},
		kept:     map[string]keptMember{},
		troubles: map[string]error{},
	}
	for _, k := range kinds() {
		s.stores[k.name] = newStore(k, s.own, 0)
	}
	for _, k := range pluginKinds() {
		s.plugins[k.name] = newStore(k, func(api.Object) bool { return false }, 0)
	}
	return s, nil
}

func kinds() []kind { return []kind{kindPodNetworks(), kindNodes(), kindMeshNodes(), kindPodBlocks()} }

// own says whether o is this node's.
func (s *Source) own(o api.Object) bool {
	if b, ok := o.(*api.PodBlock); ok {
		return b.Spec.NodeName == s.cfg.NodeName
	}
	return o.Metadata().Name == s.cfg.NodeName && s.cfg.NodeName != ""
}

// Start returns the membership to begin with. With a snapshot that is at once,
// whether or not the API can be reached; Watch goes on from there. Without one
// it joins the cluster and returns when the API has given a complete membership
// with this node and its blocks in it, or ctx's error. A warning says what is
// wrong with the snapshot.
func (s *Source) Start(ctx context.Context) (state mesh.State, warning, err error) {
	snap, err := snapshot.Load(s.cfg.StateDir)
	if err == nil {
		err = s.usable(snap)
	}
	if err == nil {
		s.begin(snap, loadMemory(s.cfg.StateDir))
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
	s.run(run, func(m mesh.State) { state = m; cancel() }, func(err error) {
		s.cfg.Log.Warn("waiting for the cluster's membership", "err", err)
	})
	if !s.have {
		return mesh.State{}, warning, fmt.Errorf("membership from the API: %w", ctx.Err())
	}
	return s.last, warning, nil
}

// usable checks that a snapshot is one of this node.
func (s *Source) usable(snap mesh.State) error {
	if s.cfg.ReadOnly {
		return nil
	}
	for _, n := range snap.Nodes {
		if n.Name == s.cfg.NodeName {
			if n.PeerID != s.cfg.PeerID {
				return fmt.Errorf("the snapshot has peer ID %s for this node, its key is %s", n.PeerID, s.cfg.PeerID)
			}
			return nil
		}
	}
	return fmt.Errorf("the snapshot is not of node %s", s.cfg.NodeName)
}

// begin takes a snapshot for what is known. Without memory it is of an unknown
// history, as if the API had lost its own.
func (s *Source) begin(snap mesh.State, m *memory) {
	s.last, s.have = snap, true
	s.keep(func(name string) bool { return m == nil || slices.Contains(m.Retained, name) })
	if m == nil {
		return
	}
	s.cluster, s.saved = m.Cluster, *m
	s.ids = m.Objects
	for name, rv := range m.Versions {
		if st, ok := s.stores[name]; ok {
			st.floor = rv
		}
	}
}

// keep holds on to all members of the last State until the API lists them, or
// proves that they are gone; for those that are retained, it cannot.
func (s *Source) keep(retained func(name string) bool) {
	for _, n := range s.last.Nodes {
		s.kept[n.Name] = keptMember{n, retained(n.Name)}
	}
}

// SetServing tells the API whether this node's pod network works: nil for yes,
// or why not; a failure is passed on when it has lasted for 10 s. Before the first
// call nothing is said.
func (s *Source) SetServing(err error) { latest(s.serving, err) }

// SetRelay says where others reach this node as their relay, as multiaddrs without
// /p2p/…; none: it is no relay. Of more than the API takes the first ones count.
func (s *Source) SetRelay(addrs []string) {
	latest(s.relay, addrs[:min(len(addrs), api.MaxRelayAddresses)])
}

// latest leaves v in c, which holds one, in place of what nobody has taken yet.
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

// Watch calls onState with the membership whenever it changed, within a second of
// the API saying so, and onErr when it cannot be followed, once per cause; the last
// State stays in force. After a cause has gone, onState is called again. Both are
// called from Watch's goroutine. Watch returns when ctx ends; everything it started
// has ended then.
func (s *Source) Watch(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	s.run(ctx, onState, onErr)
}

// run is one life of reflectors, registrar and loop.
func (s *Source) run(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer s.c.close()
	defer wg.Wait()
	defer cancel()

	in := make(chan any, 64)
	l := &loop{Source: s, onState: onState, onErr: onErr, relist: map[string]chan struct{}{}}
	for _, k := range slices.Concat(kinds(), pluginKinds()) {
		l.relist[k.name] = make(chan struct{}, 1)
	}
	l.follow = func(k kind) {
		r := &reflector{kind: k, c: s.c, prover: s.prover, self: s.cfg.NodeName, out: in, relist: l.relist[k.name]}
		wg.Go(func() { r.run(ctx) })
	}
	for _, k := range kinds() {
		l.follow(k)
	}
	if s.c.plain() {
		wg.Go(func() {
			s.prover.pulse(ctx, func() {
				for name := range l.relist {
					l.askList(name)
				}
			})
		})
	}
	if !s.cfg.ReadOnly {
		reg := &registrar{
			c: s.c, cfg: s.cfg, tune: s.tune, out: in, serving: s.serving, relay: s.relay,
			want: make(chan want, 1), claims: map[string]*api.PodBlock{},
		}
		l.want = reg.want
		wg.Go(func() { reg.run(ctx) })
	}
	l.run(ctx, in)
}
