package p2p

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"

	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/tunneltest"
)

// victim is a tunnel on a node, joined as agent/daemon does.
type victim struct {
	*tunnel.Tunnel
	arrived, delivered atomic.Uint64 // arrived are datagrams, before the tunnel looks at them
}

// arrivals counts what arrives for the lanes.
type arrivals struct {
	packet.Lanes
	count *atomic.Uint64
}

func (a arrivals) Datagram(b []byte) {
	a.count.Add(1)
	a.Lanes.Datagram(b)
}

// noCarriers opens no carriers: the victim sends nothing of its own.
type noCarriers struct{}

func (noCarriers) Open(context.Context, tunnel.PeerID, tunnel.Lane) (tunnel.Carrier, error) {
	return nil, errors.New("not here")
}

func newVictim(n *Node, blocks map[string]string) (*victim, error) {
	v := &victim{}
	v.Tunnel = tunnel.New(tunnel.Config{
		Device:     tunneltest.NewDevice(func([]byte) error { v.delivered.Add(1); return nil }),
		Underlay:   noCarriers{},
		Quarantine: func(id tunnel.PeerID, d time.Duration, why string) { n.Quarantine(peer.ID(id), d, why) },
	})
	var routes []tunnel.Route
	for id, block := range blocks {
		p, err := peer.Decode(id)
		if err != nil {
			return nil, err
		}
		routes = append(routes, tunnel.Route{Prefix: netip.MustParsePrefix(block), Peer: tunnel.PeerID(p), Self: p == n.ID()})
	}
	v.SetRoutes(routes)
	go func() { _ = v.Run(context.Background()) }()
	n.SetStreamHandler(identity.StreamProtocol, func(id peer.ID, s *paths.Stream) {
		defer s.Reset()
		_ = v.Receive(tunnel.PeerID(id), tunnel.StreamLane, s)
	})
	n.SetStreamHandler(identity.DatagramProtocol, func(id peer.ID, s *paths.Stream) {
		defer s.Reset()
		_ = v.Receive(tunnel.PeerID(id), tunnel.DatagramLane, s)
	})
	n.SetLanes(func(id peer.ID) packet.Lanes { return arrivals{v.Pull(tunnel.PeerID(id)), &v.arrived} })
	return v, nil
}

// counts is what a victim has counted.
type counts struct {
	Arrived, Delivered uint64
	Drops, Refused     map[string]uint64
	RSS, Peak          int // KiB
}

func (v *victim) counts(n *Node) *counts {
	c := &counts{Arrived: v.arrived.Load(), Delivered: v.delivered.Load(), Drops: map[string]uint64{}, Refused: n.Refused()}
	total := v.Stats().Total.Drops
	for _, r := range tunnel.Reasons() {
		c.Drops[r.String()] = total.Of(r)
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		switch f[0] {
		case "VmRSS:":
			c.RSS, _ = strconv.Atoi(f[1])
		case "VmHWM:":
			c.Peak, _ = strconv.Atoi(f[1])
		}
	}
	return c
}

// handle is what a test can ask of a victim.
func (v *victim) handle(n *Node, r request) reply {
	if r.Cmd == "rest" { // the peak is counted from now on
		_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	}
	return reply{Counts: v.counts(n)}
}

// hostile is a member's node with tools.
type hostile struct {
	n       *Node
	to      peer.ID
	sends   *collector
	targets atomic.Pointer[[]endpoint.Endpoint] // to be offered; nil: what is true
	at      atomic.Int64
}

func newHostile(n *Node, to peer.ID) *hostile {
	h := &hostile{n: n, to: to, sends: take(n)}
	h.sends.counts = true
	n.puncher.Mapped = h.offered // stand before everything else in an offer
	return h
}

// offered are the next targets.
func (h *hostile) offered() []endpoint.Endpoint {
	all := h.targets.Load()
	if all == nil {
		return nil
	}
	var out []endpoint.Endpoint
	for range 24 {
		out = append(out, (*all)[int(h.at.Add(1))%len(*all)])
	}
	return out
}

func (h *hostile) handle(r request) (out reply, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), max(r.Time, 30*time.Second))
	defer cancel()
	switch r.Cmd {
	case "true offers":
		h.targets.Store(nil)
	case "offers":
		err = h.offers(ctx, r.Targets, r.Time)
	case "datagrams":
		out.Count, err = h.datagrams(ctx, r.Packet, r.Count)
	case "sessions":
		out.Count, err = h.sessions(ctx, r.Count)
	case "frames":
		err = h.frames(ctx, r.Packet)
	default:
		return handleRole(h.n, &eventLog{}, r), nil
	}
	return out, err
}

// offers has every offer name the targets, and makes as many offers as it can for d.
func (h *hostile) offers(ctx context.Context, targets []string, d time.Duration) error {
	var all []endpoint.Endpoint
	for _, t := range targets {
		if e, ok := endpoint.Parse(ma.StringCast(t)); ok {
			all = append(all, e)
		}
	}
	h.targets.Store(&all)
	deadline := time.Now().Add(d)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for time.Now().Before(deadline) {
				if err := h.offer(ctx); err != nil {
					time.Sleep(100 * time.Millisecond) // sleep: between attempts
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// offer makes one offer, as a coordinator does.
func (h *hostile) offer(ctx context.Context) error {
	c, err := h.conn(func(network.Conn) bool { return true })
	if err != nil {
		return err
	}
	s, err := conns.Open(ctx, c, identity.PunchProtocol)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	_ = s.SetDeadline(time.Now().Add(5 * time.Second))
	var addrs []string
	for _, e := range h.offered() {
		addrs = append(addrs, e.Multiaddr().String())
	}
	o, _ := json.Marshal(map[string]any{"addrs": addrs, "want": []string{"tcp", "quic"}, "nat": "none", "guess": addrs})
	if _, err := s.Write(append(o, '\n')); err != nil {
		return err
	}
	in := bufio.NewReader(s)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	if _, err := s.Write([]byte{'\n'}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// conn is a connection to the victim.
func (h *hostile) conn(is func(network.Conn) bool) (network.Conn, error) {
	for _, c := range h.n.h.Network().ConnsToPeer(h.to) {
		if !c.IsClosed() && is(c) {
			return c, nil
		}
	}
	return nil, errors.New("no connection")
}

// datagrams sends a packet again and again, as the tunnel does.
func (h *hostile) datagrams(ctx context.Context, p []byte, count int) (sent int, err error) {
	var s *paths.Stream
	for ctx.Err() == nil {
		if s, err = h.n.OpenStream(ctx, h.to, identity.DatagramProtocol); err == nil {
			_, _ = s.Write([]byte{0})
			s.Reset()
			if h.sends.size(h.to) > len(p) {
				break
			}
			err = errNoLanes
		}
		time.Sleep(50 * time.Millisecond) // sleep: between attempts
	}
	for ; sent < count && err == nil; sent++ {
		b := bytes.Clone(p)
		if len(b) > 2 && b[0]&6 != 0 { // halves of ever other packets
			binary.BigEndian.PutUint16(b[1:], uint16(sent))
		}
		err = h.sends.put(h.to, b)
	}
	return sent, err
}

// sessions begins paths for sealed packets on one connection, and sends halves and rubbish on all of them. It returns how many were
// agreed on.
func (h *hostile) sessions(ctx context.Context, count int) (agreed int, err error) {
	var q *quic.Conn
	c, err := h.conn(func(c network.Conn) bool { return endpoint.OverUDP(c.RemoteMultiaddr()) && c.As(&q) })
	if err != nil {
		return 0, err
	}
	sock := h.n.dialer.ListeningUDP4()
	if sock == nil {
		return 0, errors.New("no socket")
	}
	defer sock.Close()
	var sealers []*sealed.Sealer
	var of [8]byte // what is agreed on, so that paths are added to it
	for range count {
		k, err := h.session(ctx, c, q, of[:])
		if err == nil {
			sealers = append(sealers, k)
		}
	}
	half := append([]byte{2, 0, 0, 2, 0, 0}, make([]byte, 1300)...) // a datagram
	binary.BigEndian.PutUint16(half[1:], uint16(len(half)-3))
	for i := range 200 * len(sealers) {
		binary.BigEndian.PutUint16(half[4:], uint16(i))
		b, err := sealers[i%len(sealers)].Seal(nil, half)
		if err != nil {
			return len(sealers), err
		}
		switch i / len(sealers) % 8 { // in every session, whichever the victim still has
		case 0: // for a session that nobody has
			b[3]++
		case 4: // forged
			b[4+rand.IntN(len(b)-4)]++
		}
		_, _ = sock.WriteTo(b, q.RemoteAddr())
		if i%64 == 0 {
			time.Sleep(time.Millisecond) // sleep: the rate of packets
		}
	}
	return len(sealers), nil
}

// session begins one. It names what is agreed on by of, zeros at first, and says it there.
func (h *hostile) session(ctx context.Context, c network.Conn, q *quic.Conn, of []byte) (*sealed.Sealer, error) {
	s, err := conns.Open(ctx, c, identity.FlightProtocol)
	if err != nil {
		return nil, err
	}
	_ = s.SetDeadline(time.Now().Add(5 * time.Second))
	offer := append(append([]byte{2}, make([]byte, 20)...), of...)
	if _, err := s.Write(offer); err != nil {
		return nil, err
	}
	var answer [29]byte
	if _, err := io.ReadFull(s, answer[:]); err != nil {
		return nil, err
	}
	copy(of, answer[21:])
	self, to := h.n.ID(), h.to
	about := append(append(append([]byte{}, offer[1:17]...), answer[1:21]...), byte(len(self)))
	about = append(append(append(about, self...), byte(len(to))), to...)
	state := q.ConnectionState().TLS
	secret, err := state.ExportKeyingMaterial("EXPORTER-edgemesh-flight", about, sealed.SecretLen)
	if err != nil {
		return nil, err
	}
	return sealed.NewSealer(state.CipherSuite, secret, binary.BigEndian.Uint32(answer[17:]))
}

// frames opens streams of the tunnel with something that is no frame.
func (h *hostile) frames(ctx context.Context, b []byte) error {
	for range 40 {
		s, err := h.n.OpenStream(ctx, h.to, identity.StreamProtocol)
		if err != nil {
			return err
		}
		_, _ = s.Write(b)
		_ = s.CloseWrite()
	}
	return nil
}
