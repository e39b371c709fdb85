package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/keytest"
	"edgemesh/test/fair"
	"edgemesh/test/tier"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/relay/forward"
)

// tap is a node's UDP socket, which QUIC shares with the test.
type tap struct {
	net.PacketConn
	late atomic.Int64 // how much later what is sent leaves, ns
	mu   sync.Mutex
	got  [][]byte // what begins as sealed packets do
}

func (p *tap) WriteTo(b []byte, to net.Addr) (int, error) {
	late := time.Duration(p.late.Load())
	if late == 0 {
		return p.PacketConn.WriteTo(b, to)
	}
	b = bytes.Clone(b)
	time.AfterFunc(late, func() { _, _ = p.PacketConn.WriteTo(b, to) })
	return len(b), nil
}

func (p *tap) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := p.PacketConn.ReadFrom(b)
	if n > 0 && b[0]&0xc0 == 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.got = append(p.got, bytes.Clone(b[:n]))
	}
	return n, from, err
}

func (p *tap) packets() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got
}

// forwarding is a node that is connected to a relay by QUIC.
type forwarding struct {
	node
	*tap
	relay net.Addr
}

func newForwarding(t testing.TB) *forwarding {
	t.Helper()
	f := &forwarding{tap: &tap{}}
	key, _ := keytest.New(t)
	f.node = newNodeWithKey(t, key, libp2p.QUICReuse(func(reset quic.StatelessResetKey, token quic.TokenGeneratorKey) (*quicreuse.ConnManager, error) {
		return quicreuse.NewConnManager(reset, token, quicreuse.OverrideListenUDP(func(network string, a *net.UDPAddr) (net.PacketConn, error) {
			c, err := net.ListenUDP(network, a)
			f.tap.PacketConn = c
			return f.tap, err
		}))
	}))
	return f
}

func (f *forwarding) connect(v *server) {
	f.t.Helper()
	if err := f.Connect(f.ctx(), v.info("quic-v1")); err != nil {
		f.t.Fatal(err)
	}
	a, _ := v.info("quic-v1").Addrs[0].ValueForProtocol(273) // UDP
	var port int
	_, _ = fmt.Sscan(a, &port)
	f.relay = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
}

// channel opens one to a member.
func (f *forwarding) channel(v *server, to *forwarding) *packet.Channel {
	f.t.Helper()
	c, err := forward.Open(f.ctx(), f.Network().ConnsToPeer(v.host.ID())[0], to.ID(), func(g func()) bool { go g(); return true })
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

// send sends what looks like a sealed packet.
func (f *forwarding) send(number uint32, text string) {
	b := binary.BigEndian.AppendUint32(nil, 2<<30|number)
	_, _ = f.WriteTo(append(append(b, make([]byte, 40)...), text...), f.relay)
}

// dropped is how many packets the relay has dropped for a reason.
func dropped(t testing.TB, v *server, why forward.Reason) (n float64) {
	t.Helper()
	all, err := v.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == "edgemesh_relay_forward_dropped_total" && m.GetLabel()[0].GetValue() == why.String() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// gathered are the bytes that members have sent, by kind and member.
func gathered(t testing.TB, v *server) map[string]float64 {
	t.Helper()
	all, err := v.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range all {
		if f.GetName() != "edgemesh_relay_member_bytes_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			out[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return out
}

// A member that requests numbers without end gets its share; what it closes it may open again, and others get theirs.
func TestChannelsWithoutEnd(t *testing.T) {
	a, b := newForwarding(t), newForwarding(t)
	conf := testConfig()
	conf.limits.MaxCircuitsPerPeer = 8
	v := newTestServer(t, conf, state(a.node, b.node))
	a.connect(v)
	b.connect(v)
	request := func() (*packet.Channel, error) {
		return forward.Open(a.ctx(), a.Network().ConnsToPeer(v.host.ID())[0], b.ID(), func(g func()) bool { go g(); return true })
	}
	var open []*packet.Channel
	refused := 0
	for range 100 {
		if c, err := request(); err == nil {
			open = append(open, c)
		} else if refused++; !strings.Contains(err.Error(), "maxCircuitsPerPeer") {
			t.Fatal(err)
		}
	}
	if len(open) != conf.limits.MaxCircuitsPerPeer || refused != 100-len(open) {
		t.Errorf("%d channels are open, %d were refused", len(open), refused)
	}
	if n := counted(t, v, "edgemesh_relay_refused_total"); n != float64(refused) {
		t.Errorf("%v of %d refusals are counted", n, refused)
	}
	b.channel(v, a)
	for _, c := range open {
		c.Close()
	}
	fair.Eventually(t, 2*time.Second, "there is room again", func() error {
		c, err := request()
		if err == nil {
			c.Close()
		}
		return err
	})
}

// Members' packets are forwarded until one of the two is removed; whoever has another's number, or none, is not answered.
func TestForwardMembersOnly(t *testing.T) {
	a, b, c := newForwarding(t), newForwarding(t), newForwarding(t)
	v := newTestServer(t, testConfig(), state(a.node, b.node, c.node))
	for _, f := range []*forwarding{a, b, c} {
		f.connect(v)
	}
	ab := a.channel(v, b)
	a.send(ab.Number, "too early")
	fair.Eventually(t, 2*time.Second, "a packet without leave is dropped", func() error { return atLeast(dropped(t, v, forward.NoLeave), 1) })
	ba := b.channel(v, a)
	a.send(ab.Number, "hello")
	fair.Eventually(t, 5*time.Second, "it arrives", func() error {
		if got := b.packets(); len(got) != 1 || !bytes.HasSuffix(got[0], []byte("hello")) || len(got[0]) != 45 {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	b.send(ba.Number, "back")
	fair.Eventually(t, 5*time.Second, "both are counted", func() error {
		if out := gathered(t, v); out["forwarded node-a"] != 45 || out["forwarded node-b"] != 44 || len(out) != 2 {
			return fmt.Errorf("bytes by member: %v", out)
		}
		return nil
	})
	c.send(ab.Number, "from another member")
	stranger, err := net.DialUDP("udp4", nil, a.relay.(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	_, _ = stranger.Write(binary.BigEndian.AppendUint32(nil, 2<<30|ab.Number))
	fair.Eventually(t, 5*time.Second, "both are dropped", func() error { return atLeast(dropped(t, v, forward.ForeignSource), 2) })
	if err := v.setMembership(state(a.node, c.node)); err != nil {
		t.Fatal(err)
	}
	before := dropped(t, v, forward.NoLeave)
	took := fair.Eventually(t, cutOff, "packets to a former member are dropped", func() error {
		a.send(ab.Number, "to nobody")
		return atLeast(dropped(t, v, forward.NoLeave), before+1)
	})
	t.Logf("cut off after %v", took)
	if out := gathered(t, v); out["forwarded node-a"] < 45 || len(out) != 1 {
		t.Errorf("bytes by member after one was removed: %v", out)
	}
	for _, got := range b.packets()[1:] {
		if bytes.HasSuffix(got, []byte("member")) {
			t.Errorf("b got %q", got)
		}
	}
	_ = stranger.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := stranger.Read(make([]byte, 2000)); err == nil {
		t.Errorf("the stranger got %d bytes", n)
	}
}

// A member that is banned meanwhile, though still listed, has nothing forwarded, in neither direction, and both are counted by reason.
func TestForwardUntilBanned(t *testing.T) {
	a, b := newForwarding(t), newForwarding(t)
	m := state(a.node, b.node)
	v := newTestServer(t, testConfig(), m)
	a.connect(v)
	b.connect(v)
	ab, ba := a.channel(v, b), b.channel(v, a)
	b.send(ba.Number, "hello")
	fair.Eventually(t, 5*time.Second, "it arrives", func() error { return atLeast(float64(len(a.packets())), 1) })
	m.Banned = []string{b.ID().String()}
	if err := v.setMembership(m); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		from   *forwarding
		number uint32
		why    forward.Reason
	}{{b, ba.Number, forward.UnknownNumber}, {a, ab.Number, forward.NoLeave}} {
		fair.Eventually(t, cutOff, x.why.String(), func() error {
			before := dropped(t, v, x.why)
			x.from.send(x.number, "late")
			time.Sleep(20 * time.Millisecond) // sleep: the packet passes the relay
			return atLeast(dropped(t, v, x.why), before+1)
		})
	}
	got := [2]int{len(a.packets()), len(b.packets())}
	const sent = 5
	want := map[forward.Reason]float64{forward.UnknownNumber: dropped(t, v, forward.UnknownNumber) + sent, forward.NoLeave: dropped(t, v, forward.NoLeave) + sent}
	for range sent {
		a.send(ab.Number, "later")
		b.send(ba.Number, "later")
	}
	for why, n := range want {
		fair.Eventually(t, 5*time.Second, why.String(), func() error { return atLeast(dropped(t, v, why), n) })
	}
	if now := [2]int{len(a.packets()), len(b.packets())}; now != got {
		t.Errorf("packets that both have got: %v, then %v", got, now)
	}
}

// A number takes one round trip, also after the relay was restarted: it keeps none.
func TestNumberInOneRoundTrip(t *testing.T) {
	a, b := newForwarding(t), newForwarding(t)
	v := newTestServer(t, testConfig(), state(a.node, b.node))
	a.connect(v)
	const trip = 200 * time.Millisecond
	a.late.Store(int64(trip))
	least := time.Hour
	for range 3 { // a busy machine may take its time once
		begun := time.Now()
		a.channel(v, b)
		least = min(least, time.Since(begun))
	}
	if least < trip || least >= 2*trip {
		t.Errorf("a number takes %v, with a round trip of %v", least, trip)
	}
	a.late.Store(0)
}

func atLeast(got, want float64) error {
	if got < want {
		return fmt.Errorf("%v, want %v", got, want)
	}
	return nil
}

// A stranger's packets to the port cost members' flows at most one packet in a hundred, and are not answered. EDGEMESH_TIER=long sends
// 100,000 a second, and judges.
func TestForwardUnderFlood(t *testing.T) {
	rate, last := 2000, 500*time.Millisecond
	full := tier.IsLong()
	if full {
		rate, last = 100_000, 5*time.Second
	}
	a, b := newForwarding(t), newForwarding(t)
	v := newTestServer(t, testConfig(), state(a.node, b.node))
	a.connect(v)
	b.connect(v)
	ab := a.channel(v, b)
	b.channel(v, a)
	ctx, cancel := context.WithTimeout(t.Context(), last)
	defer cancel()
	stranger, err := net.DialUDP("udp4", nil, a.relay.(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	var flood sync.WaitGroup
	sent := 0
	flood.Go(func() {
		b := make([]byte, 60)
		for start := time.Now(); ctx.Err() == nil; time.Sleep(time.Millisecond) { // sleep: the stranger's rate
			for ; sent < int(time.Since(start).Seconds()*float64(rate)); sent++ {
				binary.BigEndian.PutUint32(b, 2<<30|uint32(sent)*2654435761>>2)
				_, _ = stranger.Write(b)
			}
		}
	})
	mine := 0
	for ; ctx.Err() == nil; mine++ {
		a.send(ab.Number, "x")
		time.Sleep(time.Millisecond) // sleep: the member's rate
	}
	flood.Wait()
	time.Sleep(100 * time.Millisecond) // sleep: what is on its way arrives
	got := len(b.packets())
	t.Logf("%d of %d packets arrived beside %d of a stranger in %v; %v were dropped", got, mine, sent, last, dropped(t, v, forward.UnknownNumber))
	if full && got*100 < mine*99 || got == 0 {
		t.Errorf("%d of %d packets arrived", got, mine)
	}
	_ = stranger.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := stranger.Read(make([]byte, 2000)); err == nil {
		t.Errorf("the stranger got %d bytes", n)
	}
}
