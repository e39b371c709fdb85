package lan

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// tickLeast is the least time between two looks at all peers.
const tickLeast = 5 * time.Millisecond

// Config is what a Service needs; all of it is required.
type Config struct {
	Self mesh.PeerID
	// Gateways are the own nodes' addresses among its pods, IPv4 and IPv6, invalid
	// where it has no block; ProbePort is tried for probes.
	Gateways  [2]netip.Addr
	ProbePort uint16
	Kernel    Kernel
	// Open opens a stream to a member over an existing connection or a new one;
	// Connected says whether there is one.
	Open      func(ctx context.Context, to mesh.PeerID) (Stream, error)
	Connected func(mesh.PeerID) bool
	// Failing is told, without delay, that a path in use does not answer: the
	// tunnel's own way may be concerned. It must not block.
	Failing func(mesh.PeerID)
	// Mark is the SO_MARK that leads probes of a slot on their way, VXLANName the
	// interface on which VXLAN's come in, and Inside those on which none do.
	Mark      func(slot int) int
	VXLANName string
	Inside    []string
	Log       *slog.Logger
}

// Kernel holds paths.
type Kernel interface {
	// SetPaths makes the kernel hold exactly p, at once.
	SetPaths(ctx context.Context, p mesh.Paths) error
	// PathsInDoubt says that the kernel may have dropped some of them since.
	PathsInDoubt() bool
	// Uplinks lists this node's addresses on links to other hosts.
	Uplinks() ([]mesh.Uplink, error)
	// Traffic counts the packets that came in, by where they did; after an error each
	// path counts as carrying some.
	Traffic() (map[mesh.Inlet]uint64, error)
}

// Service finds and proves paths. Its methods may be called concurrently.
type Service struct {
	cfg     Config
	log     *slog.Logger
	sockets [2]*socket // nil where there is no gateway

	wg     sync.WaitGroup
	ctx    context.Context //nolint:containedctx // the lifetime of the service's goroutines
	cancel context.CancelFunc
	wake   chan struct{} // something is due, or has changed

	inMu    sync.Mutex
	inbox   []packet
	arrived chan struct{} // inbox has some

	mu                sync.Mutex
	closed            bool
	plan              mesh.Plan
	noNative, noVXLAN string // why this node takes no part
	uplinks           []mesh.Uplink
	links             map[int]string // names by index, as far as asked for
	members           map[mesh.PeerID]mesh.Node
	peers             map[mesh.PeerID]*peer
	sessions          map[uint64]*peer
	counts            map[mesh.Inlet]uint64
	settled           time.Time // all peers at once
	untold            bool      // ways have changed that the kernel has not heard of
	applyErr          string    // the last one logged
}

// New opens the sockets for probes. Run does the rest.
func New(cfg Config) (*Service, error) {
	s := &Service{
		cfg: cfg, log: cfg.Log, wake: make(chan struct{}, 1), arrived: make(chan struct{}, 1), links: map[int]string{},
		members: map[mesh.PeerID]mesh.Node{}, peers: map[mesh.PeerID]*peer{}, sessions: map[uint64]*peer{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	port := cfg.ProbePort
	for v, g := range cfg.Gateways {
		if !g.IsValid() {
			continue
		}
		sock, err := listen(g, port)
		if err == nil && s.sockets[0] != nil && sock.port != s.sockets[0].port {
			sock.close()
			err = fmt.Errorf("listen for probes at %s: port %d: %w", g, port, unix.EADDRINUSE)
		}
		if err != nil {
			s.close()
			return nil, err
		}
		s.sockets[v] = sock
		port = sock.port
	}
	return s, nil
}

// ProbePort is where probes are received, at each gateway; 0 where there is none.
func (s *Service) ProbePort() uint16 {
	for _, sock := range s.sockets {
		if sock != nil {
			return sock.port
		}
	}
	return 0
}

// Run probes until ctx ends, and closes the sockets. What is in the kernel stays.
func (s *Service) Run(ctx context.Context) {
	defer s.wg.Wait()
	defer s.close()
	for _, sock := range s.sockets {
		if sock != nil {
			s.spawn(func() { sock.run(s.receive) })
		}
	}
	s.UplinksChanged()
	count := time.NewTicker(time.Second)
	defer count.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.arrived:
		case <-s.wake:
			due = time.Now()
		case <-count.C:
			s.countTraffic()
			due = time.Now()
		}
		if at := s.takeIn(); !at.IsZero() && at.Before(due) {
			due = at
		}
		if !time.Now().Before(due) {
			due = time.Now().Add(s.tick())
		}
		timer.Reset(time.Until(due))
	}
}

func (s *Service) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	for _, sock := range s.sockets {
		if sock != nil {
			sock.close()
		}
	}
}

// spawn runs f in a goroutine that Run waits for; false when it is too late.
func (s *Service) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

func (s *Service) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// SetPlan takes the membership into force, and the reasons this node has to take no
// part in native and VXLAN paths.
func (s *Service) SetPlan(plan mesh.Plan, noNative, noVXLAN string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	otherVXLAN := s.plan.Host.LAN.IPv6Underlay != plan.Host.LAN.IPv6Underlay
	otherOffer := otherVXLAN || s.noNative != noNative || s.noVXLAN != noVXLAN
	s.plan, s.noNative, s.noVXLAN = plan, noNative, noVXLAN
	s.members = make(map[mesh.PeerID]mesh.Node, len(plan.Members))
	for _, m := range plan.Members {
		s.members[m.PeerID] = m
	}
	now := time.Now()
	for id, p := range s.peers {
		m, ok := s.members[id]
		if !ok {
			s.forget(p)
			continue
		}
		if s.describe(p, m) {
			s.endSession(p) // its gateways or IP versions are others now
		}
		if otherOffer {
			p.stale, p.pause, p.nextOffer = true, 0, now
		}
		if noNative != "" {
			p.exclude(mesh.Native)
		}
		if noVXLAN != "" || otherVXLAN {
			p.exclude(mesh.VXLAN)
		}
		s.settle(p, now)
	}
	s.apply()
	s.poke()
}

// describe fills in what the membership says of a peer; true when that is news.
func (s *Service) describe(p *peer, m mesh.Node) bool {
	was := *p
	for v, sock := range s.sockets {
		p.gateways[v], p.pods[v] = netip.Addr{}, false
		for _, b := range m.PodCIDRs {
			if b.Addr().Is6() == (v == 1) && sock != nil {
				p.gateways[v], p.pods[v] = mesh.Gateway(b), true
				break
			}
		}
	}
	return was.pods != p.pods || was.gateways != p.gateways
}

// peer returns the state of a member, nil for others. The caller holds mu.
func (s *Service) peer(id mesh.PeerID) *peer {
	m, ok := s.members[id]
	if !ok {
		return nil
	}
	p := s.peers[id]
	if p == nil {
		p = newPeer(s.cfg.Self, id)
		s.describe(p, m)
		s.peers[id] = p
	}
	return p
}

func (s *Service) forget(p *peer) {
	s.endSession(p)
	delete(s.peers, p.id)
}

func (s *Service) endSession(p *peer) {
	for id, o := range s.sessions {
		if o == p {
			delete(s.sessions, id)
		}
	}
	p.drop()
	p.choose()
	s.untold = p.plan(time.Now()) || s.untold
}

// Used says that packets go to a member through the tunnel: a connection is there.
func (s *Service) Used(id mesh.PeerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peer(id); p != nil {
		if !p.works() && p.sess != nil && p.pause > offerMin { // a new connection: perhaps elsewhere
			p.pause = 0
			p.nextOffer = minTime(p.nextOffer, time.Now().Add(offerSoon))
		}
		s.poke()
	}
}

// UplinksChanged says that this node's links or addresses have changed, and returns
// those it found; nil when they are not known.
func (s *Service) UplinksChanged() []mesh.Uplink {
	all, err := s.cfg.Kernel.Uplinks()
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.links)
	if err != nil {
		s.log.Warn("the uplinks are not known", "err", err)
		return nil
	}
	if slices.Equal(all, s.uplinks) {
		if s.cfg.Kernel.PathsInDoubt() { // an uplink was down, or had no address, for a moment
			s.apply()
		}
		return all
	}
	s.uplinks = all
	s.log.Debug("private addresses of uplinks", "uplinks", all)
	now := time.Now()
	for _, p := range s.peers {
		p.addressesChanged(all, now)
		s.settle(p, now)
	}
	s.apply()
	s.poke()
	return all
}

// Status tells of one member; ok is false when there is nothing to tell.
func (s *Service) Status(id mesh.PeerID) (st Status, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[id]
	if p == nil {
		return Status{}, false
	}
	return p.status(s.noNative, s.noVXLAN), true
}

// tick does what is due and returns the time to the next call.
func (s *Service) tick() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	all := now.Sub(s.settled) >= time.Second // who is let in, without a probe, for how long
	if all {
		s.settled = now
	}
	wait := time.Second
	s.tell() // probes need their routes
	for _, p := range s.peers {
		at, ok := p.next()
		due := ok && !now.Before(at)
		if due {
			s.probe(p, now)
		}
		if due || all {
			s.settle(p, now)
		}
		s.mayOffer(p, now)
		if at, ok := p.next(); ok {
			wait = min(wait, at.Sub(now))
		}
	}
	s.tell()
	return max(wait, tickLeast)
}

// probe sends what of a peer's probes is due. The caller holds mu.
func (s *Service) probe(p *peer, now time.Time) {
	for _, r := range p.tick(now) {
		if r.track.state == failing && r.track.since.Equal(now) && slices.Contains(p.using[:], r.track) {
			s.cfg.Failing(p.id)
		}
		s.send(p, p.sess, r.track, typeRequest, r.probe.seq, s.sizeOf(r))
	}
}

func (s *Service) sizeOf(r request) int {
	if !r.probe.full {
		return smallProbe
	}
	return r.track.c.mtu
}
