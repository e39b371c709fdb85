package paths

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/packet"
)

// Conn is one connection to a peer, direct or relayed.
type Conn struct {
	line
	streams
	Probes Probes
	flight *packet.Flight
}

// New makes c a path of the owner. Run has to be called.
func New(cfg *Config, owner Owner, c network.Conn, id ladder.PathID) *Conn {
	a := c.RemoteMultiaddr()
	x := &Conn{line: line{Conn: c, ID: id, cfg: cfg, owner: owner, addr: a}, streams: newStreams()}
	x.traffic.opened, x.traffic.wake = time.Now(), func() { owner.Wake(); x.ConfirmSize() }
	x.Probes = newProbes(&x.line)
	x.ctx, x.cancel = context.WithCancel(cfg.Ctx)
	if endpoint.IsCircuit(a) {
		x.Relay = endpoint.RelayOf(a)
	}
	_, err := a.ValueForProtocol(ma.P_QUIC_V1)
	x.udp = err == nil
	switch {
	case !cfg.Sealed:
	case x.Relay == "":
		x.flight = cfg.Packets.Flight(x.ctx, c, beside{x})
	case cfg.Channel != nil:
		x.flight = cfg.Packets.Relayed(x.ctx, c, forwarded{beside{x}}, x.Probes.RTT,
			func(ctx context.Context) (*packet.Channel, error) { return cfg.Channel(ctx, x.Relay, owner.ID()) })
	}
	return x
}

// Run probes the connection and offers sealed packets beside it. It does not wait; false: the
// node is closed.
func (c *Conn) Run() bool {
	return c.cfg.Spawn(c.Probes.run) && c.cfg.Spawn(c.flight.Run)
}

// Link describes c for the machine, without the order of its relay.
func (c *Conn) Link() ladder.Link {
	l := ladder.Link{Relayed: c.Relayed(), Relay: string(c.Relay)}
	if c.udp {
		l.Transport = ladder.QUIC
	}
	if ip, ok := endpoint.IP(c.RemoteMultiaddr()); ok && !l.Relayed {
		l.IPv6 = ip.Is6()
	}
	return l
}

// Path describes c.
func (c *Conn) Path() Path {
	relay := ""
	if c.Relay != "" {
		relay = c.Relay.String()
	}
	rtt, queue, direct := c.Probes.path()
	forwarding := ""
	if why, ok := c.flight.Forwarding(); ok {
		forwarding = Forwarded
		if why != "" {
			forwarding = "in the circuit: " + why
		}
	}
	return Path{Kind: c.kind(direct), Transport: c.transport(), RTT: rtt, Queue: queue, Addr: endpoint.Real(c.RemoteMultiaddr()).String(),
		NAT64: endpoint.NAT64(c.RemoteMultiaddr()), Relay: relay, Datagrams: forwarding}
}

// far is longer than a probe takes on a short path, though two programs wait for processors and the first opens its stream.
const far = 20 * time.Millisecond

// OverTCP reports whether c is a direct connection over TCP, and its shortest round trip as the kernel measured it, 0: unknown. The
// kernel's is that of a proxy or a satellite's modem where TCP ends at one, and too short for some minutes where two ends opened at the
// same time: it counts unless the peer's own answers take much longer.
func (c *Conn) OverTCP() (least time.Duration, ok bool) {
	if c.transport() != "tcp" {
		return 0, false
	}
	if answer := c.Probes.least(); answer == 0 || answer > far {
		return 0, true
	}
	return c.cfg.TCP.LeastRTT(c), true
}

// CarrierHeard says when the kernel last heard what is directly below c: for TCP the peer
// on this very connection, for QUIC the peer on a TCP connection beside it, for a relayed
// path the relay. The zero time: unknown.
func (c *Conn) CarrierHeard() time.Time {
	if !c.Relayed() && !c.udp {
		return c.cfg.TCP.Heard(c)
	}
	next := c.owner.ID()
	if c.Relayed() {
		next = c.Relay
	}
	var last time.Time
	for _, x := range c.cfg.Conns(next) {
		if endpoint.IsCircuit(x.RemoteMultiaddr()) {
			continue
		}
		if at := c.cfg.TCP.Heard(x); at.After(last) {
			last = at
		}
	}
	return last
}

// AnswerFlight serves the sealed packets that a stream of the peer offers. It returns false, and
// leaves the stream to the caller, if c takes none.
func (c *Conn) AnswerFlight(s network.Stream) bool {
	if c.flight == nil {
		return false
	}
	c.flight.Answer(s)
	return true
}

// Spare says whether the datagram lane has a better path: sealed packets beside a circuit end then.
func (c *Conn) Spare(spare bool) { c.flight.Spare(spare) }

// Sealed reports whether sealed packets carry the peer's lanes beside c.
func (c *Conn) Sealed() bool { return c.flight.Carries() }

// ConfirmSize confirms the size of sealed packets, which may have become smaller.
func (c *Conn) ConfirmSize() { c.flight.Confirm() }
