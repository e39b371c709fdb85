package lan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/lan/decide"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

const (
	tickLeast  = 5 * time.Millisecond // between two looks at all peers
	countEvery = time.Second          // how often the kernel's counters are read at most
)

// Config is what a Service needs; all of it is required.
type Config struct {
	decide.Config // New fills in Versions and Secret; ProbePort is the preferred one
	// Gateways are this node's addresses among its pods, IPv4 and IPv6, invalid where it
	// has no block.
	Gateways [2]netip.Addr
	Listen   func(gateway netip.Addr, port uint16) (Socket, error) // the function Listen, but in tests
	Kernel   Kernel
	// Open opens a stream to a member over an existing connection or a new one;
	// Connected reports whether there is one.
	Open      func(ctx context.Context, to mesh.PeerID) (Stream, error)
	Connected func(mesh.PeerID) bool
	// Suspect is called as soon as a path in use does not answer: the path through the
	// tunnel may be dead, too. It must not block.
	Suspect func(mesh.PeerID)
	Mark    func(slot int) int // the SO_MARK that routes the probes of a slot
	Log     *slog.Logger
}

// Kernel holds paths.
type Kernel interface {
	// SetPaths makes the kernel hold exactly p, in one step.
	SetPaths(ctx context.Context, p mesh.Paths) error
	// PathsSuspect reports whether the kernel may have dropped some of them since.
	PathsSuspect() bool
	// Uplinks lists this node's addresses on links to other hosts.
	Uplinks() ([]mesh.Uplink, error)
	// Neighbour is the MAC that the kernel has for an address on a link, none if it looked without success, and when it was confirmed;
	// the error is one of the kernel's, or that it did not look.
	Neighbour(link string, a netip.Addr) (mac [6]byte, confirmed time.Time, err error)
	// ProbeAddrs are where this node may take forwarded probes, IPv4 and IPv6, invalid where it cannot.
	ProbeAddrs() [2]netip.Addr
	// SendForwarded sends packets as pods do. It does not wait.
	SendForwarded(packets [][]byte) error
	// TakeForwarded calls f with each packet that has come in for ProbeAddrs from Paths' Probers, and the interface it came in on, "" if
	// that is gone. f must not keep b.
	TakeForwarded(f func(b []byte, link string))
	// Traffic counts the packets that came in, by block and interface. After an error
	// every path counts as carrying traffic.
	Traffic() (map[mesh.Inlet]mesh.Count, error)
}

// Service finds and proves paths: it carries out what its machine decides. Its methods
// may be called concurrently.
type Service struct {
	cfg     Config
	sockets map[bool]Socket // IPv4's and true for IPv6's, where there is a gateway
	inbox   inbox

	wg     sync.WaitGroup
	ctx    context.Context //nolint:containedctx // the lifetime of the service's goroutines
	cancel context.CancelFunc
	wake   wake.One // something is due, or has changed

	// mu is locked before a socket's mutex and the kernel's; the inbox's is never locked
	// together with it. The kernel is called under it: nothing else may change meanwhile. The tunnel's first packet to a peer
	// waits for it (Used), so nothing under it may wait for the network.
	mu       sync.Mutex
	closed   bool
	machine  *decide.Machine
	applyErr string // the last one logged
}

// New opens the sockets for probes. Run does the rest.
func New(cfg Config) (*Service, error) {
	s := &Service{
		cfg: cfg, sockets: map[bool]Socket{},
		wake: wake.NewOne(), inbox: inbox{arrived: wake.NewOne()},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	port := cfg.ProbePort
	for v, g := range cfg.Gateways {
		if !g.IsValid() {
			continue
		}
		sock, err := cfg.Listen(g, port)
		if err == nil && len(s.sockets) > 0 && sock.Port() != port {
			sock.Close()
			err = fmt.Errorf("listen for probes at %s: port %d: %w", g, port, unix.EADDRINUSE)
		}
		if err != nil {
			s.Close()
			return nil, err
		}
		s.sockets[v == 1] = sock
		port = sock.Port()
	}
	cfg.Versions = [2]bool{s.sockets[false] != nil, s.sockets[true] != nil}
	cfg.ProbePort, cfg.Secret = s.ProbePort(), decide.NewSecret
	s.machine = decide.New(cfg.Config)
	return s, nil
}

// ProbePort is the port of probes at each gateway, 0 where there is none.
func (s *Service) ProbePort() uint16 {
	for _, sock := range s.sockets {
		return sock.Port()
	}
	return 0
}

// Run probes until ctx ends, and closes the sockets. What is in the kernel stays.
func (s *Service) Run(ctx context.Context) {
	defer s.wg.Wait()
	defer s.Close()
	for _, sock := range s.sockets {
		s.wg.Go(func() { sock.Run(s.inbox.put) })
	}
	s.UplinksChanged()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due, counted time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.inbox.arrived:
		case <-s.wake:
			due = time.Now()
		}
		if at := s.takeIn(); !at.IsZero() && at.Before(due) {
			due = at
		}
		if !time.Now().Before(due) {
			if time.Since(counted) >= countEvery {
				s.countTraffic()
				counted = time.Now()
			}
			due = time.Now().Add(s.tick())
		}
		timer.Reset(time.Until(due))
	}
}

// Close closes the sockets of a service that is not run; Run does so at its end.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	for _, sock := range s.sockets {
		sock.Close()
	}
}

// SetPlan brings the membership into force; off says why this node takes no part in
// native or VXLAN paths.
func (s *Service) SetPlan(plan mesh.Plan, off decide.Off) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.SetPlan(time.Now(), plan, off)
	s.apply()
	s.wake.Wake()
}

// Used says that the tunnel carries packets to a member, so that there is a connection.
func (s *Service) Used(id mesh.PeerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.Used(time.Now(), id)
	s.wake.Wake()
}

// UplinksChanged says that this node's links or addresses have changed, and returns
// those it found; nil when they are unknown.
func (s *Service) UplinksChanged() []mesh.Uplink {
	all, err := s.cfg.Kernel.Uplinks()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sock := range s.sockets {
		sock.Renamed()
	}
	if err != nil {
		s.cfg.Log.Warn("this node's uplinks are unknown; LAN paths use the addresses known before", "err", err)
		return nil
	}
	switch {
	case s.machine.SetUplinks(time.Now(), all):
		s.cfg.Log.Debug("private addresses of uplinks", "uplinks", all)
		s.wake.Wake()
	case s.cfg.Kernel.PathsSuspect(): // an uplink was down, or had no address, for a moment
		s.machine.Again()
	}
	s.apply()
	return all
}

// Status is that of one member; ok is false when nothing is known of it.
func (s *Service) Status(id mesh.PeerID) (st decide.Status, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Status(id)
}

// tick does what is due and returns the time to the next call.
func (s *Service) tick() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.SetProbeAddrs(time.Now(), s.cfg.Kernel.ProbeAddrs())
	s.apply() // probes need their routes
	orders := s.machine.Tick(time.Now(), s.cfg.Connected)
	for _, id := range orders.Suspects {
		s.cfg.Suspect(id)
	}
	for _, x := range orders.Silent {
		if mac, confirmed, err := s.cfg.Kernel.Neighbour(x.Link, x.Via); err == nil {
			s.machine.Explain(x, mac, confirmed)
		}
	}
	for _, x := range orders.Forwarded { // first: the others ask what became of them
		if err := s.cfg.Kernel.SendForwarded(x.Packets); err != nil {
			s.machine.SetProbeAddrs(time.Now(), [2]netip.Addr{})
		} else {
			x.Sent(time.Now())
		}
	}
	for _, p := range orders.Probes {
		s.send(p)
	}
	for _, x := range orders.Offers {
		if s.closed {
			break
		}
		s.begin(x)
	}
	s.apply()
	return max(orders.Next, tickLeast)
}

// Recheck says that what the host does with forwarded packets may have changed.
func (s *Service) Recheck() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.Recheck()
}

// takeIn handles what has come in, and answers. It returns when the first probe to the
// senders is due, the zero time if there is none.
func (s *Service) takeIn() (next time.Time) {
	all := s.inbox.empty()
	if len(all) == 0 {
		return next
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Kernel.TakeForwarded(s.machine.Caught) // answers say what has come in before
	var answers []decide.Send
	for _, k := range all {
		answer, at := s.machine.Hear(k)
		answers = append(answers, answer...)
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	s.apply() // before the answers: who sees one may send
	for _, a := range answers {
		s.send(a)
	}
	return next
}

// send sends one probe or answer. The caller holds mu.
func (s *Service) send(p decide.Send) {
	sock := s.sockets[p.V6]
	if sock == nil {
		return
	}
	if err := sock.Send(s.cfg.Mark(p.Slot), p.Hops, p.To, p.Payload); err != nil {
		p.Failed(err)
	}
}

// apply gives all paths to the kernel if they have changed. The caller holds mu.
func (s *Service) apply() {
	s.logChanges()
	paths, changed := s.machine.Paths()
	if !changed {
		return
	}
	text := ""
	if err := s.cfg.Kernel.SetPaths(s.ctx, paths); err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	if text != s.applyErr && text != "" {
		s.cfg.Log.Error("could not set all LAN paths in the kernel", "err", text)
	}
	s.applyErr = text
}

// logChanges reports which paths are used now. The caller holds mu.
func (s *Service) logChanges() {
	for _, c := range s.machine.Changes() {
		pods := "IPv4"
		if c.V6 {
			pods = "IPv6"
		}
		if c.Kind == "" {
			s.cfg.Log.Info("LAN path lost, using the tunnel", "peer", c.Peer, "reason", c.Reason, "pods", pods)
		} else {
			s.cfg.Log.Info("LAN path in use", "peer", c.Peer, "path", c.Kind, "via", c.Via, "link", c.Link, "pods", pods, "reason", c.Reason)
		}
	}
}

// Received is how many bytes have come in past the tunnel, by kind of path.
func (s *Service) Received() map[mesh.PathKind]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Received()
}

// countTraffic notes which paths carry packets.
func (s *Service) countTraffic() {
	s.mu.Lock()
	inUse := s.machine.InUse()
	s.mu.Unlock()
	if !inUse {
		return
	}
	counts, err := s.cfg.Kernel.Traffic()
	if err != nil {
		s.cfg.Log.Debug("the traffic of LAN paths is unknown", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.Traffic(time.Now(), counts, err == nil)
}

// begin carries out an exchange that this node begins. The caller holds mu.
func (s *Service) begin(x *decide.Exchange) {
	s.wg.Go(func() {
		err := s.exchange(x)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.machine.Ended(time.Now(), x, err)
		if err != nil {
			s.cfg.Log.Debug("offer of LAN addresses", "peer", s.machine.Name(x.Peer), "err", err)
		}
		s.wake.Wake()
	})
}

// exchange carries out the exchange on a stream of its own.
func (s *Service) exchange(x *decide.Exchange) error {
	ctx, cancel := context.WithTimeout(s.ctx, exchangeTime)
	defer cancel()
	st, err := s.cfg.Open(ctx, x.Peer)
	if err != nil {
		return err
	}
	return offerOn(ctx, st, x.Us, func(them decide.Offer) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.take(x, them, true)
	})
}

// Answer carries out an exchange of offers that a member began. It owns the stream.
func (s *Service) Answer(id mesh.PeerID, st Stream) (err error) {
	defer func() {
		if err != nil {
			st.Reset()
		}
	}()
	deadline := time.Now().Add(exchangeTime)
	_ = st.SetReadDeadline(deadline)
	_ = st.SetWriteDeadline(deadline)
	them, err := decide.ReadOffer(st)
	if err != nil {
		return err
	}
	s.mu.Lock()
	x, err := s.machine.Answer(id)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	err = answerOn(st, x.Us) // a reset would overtake the end, which tells the peer that its offer is in force
	s.mu.Lock()
	s.machine.Ended(time.Now(), x, err)
	counts := err == nil && !s.closed && s.take(x, them, false)
	s.mu.Unlock()
	s.wake.Wake()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", decide.ErrUnconfirmed, err)
	case !counts:
		return decide.ErrBusy
	}
	return st.CloseWrite()
}

// take brings two offers into force, if the exchange counts. The caller holds mu. Run
// applies the new paths to the kernel before anything is probed.
func (s *Service) take(x *decide.Exchange, them decide.Offer, initiator bool) bool {
	if !s.machine.Take(time.Now(), x, them) {
		return false
	}
	s.logChanges()
	s.cfg.Log.Debug("offers exchanged", "peer", s.machine.Name(x.Peer), "theirs", fmt.Sprint(them.Addrs),
		"candidates", s.machine.Candidates(x.Peer), "initiator", initiator)
	s.wake.Wake()
	return true
}
