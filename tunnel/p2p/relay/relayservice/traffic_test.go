package relayservice

import (
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	pbv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/who/identity"
)

const testTime = 20 * time.Second

func newHost(t testing.TB, muxer network.Multiplexer, l identity.Limits, listen ...string) host.Host {
	t.Helper()
	rm, err := identity.ResourceManager(l)
	if err != nil {
		t.Fatal(err)
	}
	h, err := libp2p.New(libp2p.ListenAddrStrings(listen...), libp2p.DisableRelay(), libp2p.DisableMetrics(), libp2p.Muxer(mux.ID, muxer),
		libp2p.ResourceManager(rm))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// circuits is a relay, and two members that follow its protocol only as far as they have to.
type circuits struct {
	host     host.Host // the relay's
	t        *testing.T
	relay    peer.AddrInfo
	from, to host.Host
	takes    atomic.Bool  // the far end reads
	refused  atomic.Int64 // circuits that the relay has ended
	share    atomic.Int64
	service  *Service
}

func newCircuits(t *testing.T, look time.Duration, l identity.Limits) *circuits {
	t.Helper()
	h := newHost(t, identity.RelayMuxer(), l, "/ip4/127.0.0.1/tcp/0")
	c := &circuits{t: t, host: h, relay: peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()},
		from: newHost(t, identity.Muxer(), identity.Limits{}), to: newHost(t, identity.RelayMuxer(), identity.Limits{})}
	var err error
	c.service, err = Start(Config{Host: h, look: look,
		Limits:   Limits{MaxReservations: 10, MaxReservationsPerIP: 10, MaxCircuits: 100, MaxCircuitsPerPeer: 100, BufferSize: 16 << 10},
		IsMember: func(peer.ID) bool { return true }, IsKnown: func(peer.ID) bool { return true },
		Relays:  func() []peer.AddrInfo { return nil },
		Share:   func() int { return int(c.share.Load()) },
		Refused: func(string, peer.ID, string) { c.refused.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.service.Close() })
	c.to.SetStreamHandler(proto.ProtoIDv2Stop, c.answer)
	for _, m := range []host.Host{c.from, c.to} {
		if err := m.Connect(t.Context(), c.relay); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Reserve(t.Context(), c.to, c.relay); err != nil {
		t.Fatal(err)
	}
	return c
}

// answer takes a circuit, and reads from it only a little at a time, if at all.
func (c *circuits) answer(s network.Stream) {
	ok, rd := pbv2.Status_OK, util.NewDelimitedReader(s, 4096)
	var m pbv2.StopMessage
	if rd.ReadMsg(&m) != nil || util.NewDelimitedWriter(s).WriteMsg(&pbv2.StopMessage{Type: pbv2.StopMessage_STATUS.Enum(), Status: &ok}) != nil {
		return
	}
	for b := make([]byte, 1<<10); ; {
		if !c.takes.Load() {
			time.Sleep(time.Millisecond) // sleep: it reads nothing
			if s.Conn().IsClosed() {
				return
			}
			continue
		}
		if _, err := s.Read(b); err != nil {
			return
		}
		time.Sleep(time.Millisecond) // sleep: it reads slowly, so that it takes many looks
	}
}

// open opens a circuit, and returns how many bytes it has taken so far, and what ends with it.
func (c *circuits) open(from host.Host) (sent *atomic.Int64, ended chan struct{}) {
	c.t.Helper()
	sent, ended, err := c.tryOpen(from)
	if err != nil {
		c.t.Fatal(err)
	}
	return sent, ended
}

func (c *circuits) tryOpen(from host.Host) (sent *atomic.Int64, ended chan struct{}, err error) {
	s, err := from.NewStream(c.t.Context(), c.relay.ID, proto.ProtoIDv2Hop)
	if err != nil {
		return nil, nil, err
	}
	m := &pbv2.HopMessage{Type: pbv2.HopMessage_CONNECT.Enum(), Peer: util.PeerInfoToPeerV2(peer.AddrInfo{ID: c.to.ID()})}
	if err := util.NewDelimitedWriter(s).WriteMsg(m); err != nil {
		return nil, nil, err
	}
	if err := util.NewDelimitedReader(s, 4096).ReadMsg(m); err != nil || m.GetStatus() != pbv2.Status_OK {
		return nil, nil, fmt.Errorf("circuit: %v: %w", m.GetStatus(), err)
	}
	sent, ended = new(atomic.Int64), make(chan struct{})
	go func() {
		defer close(ended)
		for b := make([]byte, 4<<10); ; {
			n, err := s.Write(b)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	go func() { _, _ = io.Copy(io.Discard, s) }()
	return sent, ended, nil
}

// A circuit whose far end takes nothing is ended, so that two members cannot keep windows of the relay's memory full.
func TestStalledCircuitEnds(t *testing.T) {
	c := newCircuits(t, 50*time.Millisecond, identity.Limits{})
	_, ended := c.open(c.from)
	ctx, cancel := fair.WithTimeout(t.Context(), testTime)
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the circuit is still there")
	}
	fair.Eventually(t, testTime, "the relay forgets the circuit", fair.True(func() bool {
		c.service.traffic.mu.Lock()
		defer c.service.traffic.mu.Unlock()
		return c.service.Circuits() == 0 && len(c.service.traffic.streams) == 0
	}))
	if c.refused.Load() == 0 {
		t.Error("it was not counted")
	}
}

// The control: a far end that takes some, however slowly, and one for which nothing waits keep their circuits.
func TestSlowCircuitStays(t *testing.T) {
	c := newCircuits(t, 200*time.Millisecond, identity.Limits{})
	c.takes.Store(true)
	sent, ended := c.open(c.from)
	fair.Eventually(t, testTime, "some megabytes arrive", fair.True(func() bool { return sent.Load() > 3<<20 }))
	by := c.service.traffic.shares.metrics.carried.of(c.from.ID())
	if n := by.circuits.Load(); n < 1<<20 || by.forwarded.Load() != 0 {
		t.Errorf("%d bytes are counted as the sender's", n)
	}
	select {
	case <-ended:
		t.Error("a circuit that is in use was ended")
	default:
	}
	if n := c.refused.Load(); n != 0 {
		t.Errorf("%d circuits were ended", n)
	}
}

// Two members who work together fill the windows of as many circuits as they like, and hold no more of the relay's memory
// than one of them may; a third one has its circuit all the same. The control is the same with more memory.
func TestMemoryOfTwoWhoWorkTogether(t *testing.T) {
	const many = 40
	for name, x := range map[string]struct {
		memory int64
		ended  bool
	}{"4 MiB": {4 << 20, true}, "64 MiB": {64 << 20, false}} {
		t.Run(name, func(t *testing.T) {
			c := newCircuits(t, time.Hour, identity.Limits{Memory: 1 << 30, PeerMemory: int(x.memory)})
			var ended atomic.Int64
			var sent []*atomic.Int64
			for len(sent) < many && ended.Load() == 0 {
				n, end, err := c.tryOpen(c.from)
				if err != nil && x.ended { // nothing was left to reset: the whole session ended
					ended.Add(1)
					break
				} else if err != nil {
					t.Fatal(err)
				}
				sent = append(sent, n)
				go func() { <-end; ended.Add(1) }()
			}
			held := func() (n int64) {
				err := c.host.Network().ResourceManager().ViewPeer(c.from.ID(), func(s network.PeerScope) error {
					n = s.Stat().Memory
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			fair.Eventually(t, testTime, "every window is full, or its circuit has ended", func() error {
				if n := held(); n > x.memory {
					t.Fatalf("%d bytes are held", n)
				}
				full := ended.Load()
				for _, n := range sent {
					if n.Load() >= 380<<10 { // the far end's window, and what fits into the relay's since it was last widened
						full++
					}
				}
				if full < int64(len(sent)) || x.ended && ended.Load() == 0 {
					return fmt.Errorf("%d of %d, %d ended", full, len(sent), ended.Load())
				}
				return nil
			})
			if n := ended.Load(); (n > 0) != x.ended {
				t.Errorf("%d circuits ended", n)
			}
			other := newHost(t, identity.Muxer(), identity.Limits{})
			if err := other.Connect(t.Context(), c.relay); err != nil {
				t.Fatal(err)
			}
			theirs, _ := c.open(other)
			fair.Eventually(t, testTime, "another member's bytes arrive", fair.True(func() bool { return theirs.Load() > 100<<10 }))
		})
	}
}
