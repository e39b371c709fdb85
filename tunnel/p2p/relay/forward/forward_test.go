package forward

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"

	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

// conn is a member's connection, and where it is.
type conn struct {
	network.Conn
	id      peer.ID
	at      *net.UDPAddr
	mu      sync.Mutex // guards the rest
	got     [][]byte
	room    int // bytes that can be sent; below 0: any number
	bytes   int
	sending func() // nil: nothing is done then
}

func (c *conn) RemotePeer() peer.ID           { return c.id }
func (c *conn) RemoteMultiaddr() ma.Multiaddr { return ma.StringCast("/ip4/5.5.5.5/udp/1/quic-v1") }
func (c *conn) Is(a *net.UDPAddr) bool        { return a.Port == c.at.Port && a.IP.Equal(c.at.IP) }
func (c *conn) Send(b []byte, each int) (sent int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending != nil {
		c.sending()
	}
	for ; len(b) > 0; b = b[min(each, len(b)):] {
		n := min(each, len(b))
		if c.room >= 0 && c.room < n {
			return sent, unix.EAGAIN
		}
		if c.room >= 0 {
			c.room -= n
		}
		c.got, sent, c.bytes = append(c.got, bytes.Clone(b[:n])), sent+n, c.bytes+n
	}
	return sent, nil
}

// share gives a member so many bytes; below 0: any number.
type share struct{ left, sent int }

func (s *share) Take(n, each int) int {
	if s.left >= 0 {
		n = min(n, s.left/each*each)
		s.left -= n
	}
	return n
}
func (s *share) Sent(n int) { s.sent += n }
func (s *share) Leave()     {}

// lab is a relay with three members, a, b and c; x is none.
type lab struct {
	*Service
	mu      sync.Mutex // guards what is counted
	conns   map[peer.ID]*conn
	shares  map[peer.ID]*share
	dropped map[Reason]int
}

func newLab(t testing.TB) *lab {
	l := &lab{conns: map[peer.ID]*conn{}, shares: map[peer.ID]*share{}, dropped: map[Reason]int{}}
	for i, id := range []peer.ID{"a", "b", "c", "x"} {
		l.conns[id] = &conn{id: id, at: &net.UDPAddr{IP: net.IPv4(5, 5, byte(i), 1), Port: 4001}, room: -1}
		l.shares[id] = &share{left: -1}
	}
	l.Service = New(Config{
		Far:      func(c network.Conn) (Far, error) { return c.(*conn), nil },
		IsMember: func(p peer.ID) bool { return p != "x" }, StandsBy: func(network.Conn) bool { return false },
		PerMember: 4, All: 10, Join: func(p peer.ID) Share { return l.shares[p] },
		Refused: func(string, peer.ID, string) {
			if !l.Service.mu.TryRLock() {
				t.Error("a channel is refused while readers of the socket wait")
				return
			}
			l.Service.mu.RUnlock()
		},
		Dropped: func(why Reason, n int) { l.mu.Lock(); defer l.mu.Unlock(); l.dropped[why] += n },
	})
	t.Cleanup(l.Close)
	return l
}

// sealedTrain is n sealed packets of a size for a channel, the last one a byte shorter.
func sealedTrain(number uint32, n, size int) (b []byte, each int) {
	for i := range n {
		b = binary.BigEndian.AppendUint32(b, 0x80000000|number)
		p := bytes.Repeat([]byte{byte(i) & 0x3f}, size)
		b = append(b, p[:size-(i+1)/n]...)
	}
	return b, size + packet.ChannelLen
}

// pair opens both directions between a and b.
func (l *lab) pair(t testing.TB) (ab, ba *channel) {
	t.Helper()
	ab, why := l.open(l.conns["a"], "b")
	ba, why2 := l.open(l.conns["b"], "a")
	if ab == nil || ba == nil {
		t.Fatal(why, why2)
	}
	return ab, ba
}

func TestForward(t *testing.T) {
	l := newLab(t)
	ab, _ := l.pair(t)
	b, each := sealedTrain(ab.number, 3, 100)
	l.Forward(b, each, l.conns["a"].at)
	got := l.conns["b"].got
	if len(got) != 3 || !bytes.Equal(got[1], bytes.Repeat([]byte{1}, 100)) || len(got[2]) != 99 || l.shares["a"].sent != 299 || len(l.dropped) != 0 {
		t.Errorf("got %v, %d bytes sent, dropped %v", got, l.shares["a"].sent, l.dropped)
	}
}

// What has no right to be forwarded is dropped, counted by reason, and reaches nobody.
func TestDropped(t *testing.T) {
	for want, send := range map[Reason]func(l *lab, ab, ba *channel){
		Short: func(l *lab, ab, _ *channel) {
			l.Forward([]byte{0x80, 0}, 2, l.conns["a"].at)
		},
		UnknownNumber: func(l *lab, ab, _ *channel) {
			b, each := sealedTrain(ab.number^1, 1, 100)
			l.Forward(b, each, l.conns["a"].at)
		},
		ForeignSource: func(l *lab, ab, _ *channel) {
			b, each := sealedTrain(ab.number, 1, 100)
			l.Forward(b, each, l.conns["b"].at)
		},
		NoLeave: func(l *lab, ab, ba *channel) {
			l.close(ba)
			b, each := sealedTrain(ab.number, 1, 100)
			l.Forward(b, each, l.conns["a"].at)
		},
		NotSealed: func(l *lab, ab, _ *channel) {
			b, each := sealedTrain(ab.number, 1, 100)
			b[packet.ChannelLen] = 0x40 // QUIC's
			l.Forward(b, each, l.conns["a"].at)
		},
	} {
		t.Run(want.String(), func(t *testing.T) {
			l := newLab(t)
			ab, ba := l.pair(t)
			send(l, ab, ba)
			if fmt.Sprint(l.dropped) != fmt.Sprint(map[Reason]int{want: 1}) {
				t.Errorf("dropped %v", l.dropped)
			}
			for id, c := range l.conns {
				if len(c.got) > 0 {
					t.Errorf("%s got %v", id, c.got)
				}
			}
		})
	}
	l := newLab(t)
	ab, _ := l.pair(t)
	b, each := sealedTrain(ab.number, 1, sealed.Overhead-1)
	if l.Forward(b, each, l.conns["a"].at); l.dropped[Short] != 1 {
		t.Errorf("a sealed packet cut short: %v", l.dropped)
	}
}

// Strangers get no channel, nobody one to a stranger or to itself, and who wants many gets its share.
func TestOpen(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct{ from, to peer.ID }{{"x", "a"}, {"a", "x"}, {"a", "a"}} {
		if ch, why := l.open(l.conns[c.from], c.to); ch != nil || why != refused {
			t.Errorf("%s to %s: %v", c.from, c.to, why)
		}
	}
	var all []*channel
	for range 4 {
		ch, why := l.open(l.conns["a"], "b")
		if ch == nil {
			t.Fatal(why)
		}
		all = append(all, ch)
	}
	if ch, why := l.open(l.conns["a"], "b"); ch != nil || why != full {
		t.Errorf("a fifth channel: %v", why)
	}
	ba, why := l.open(l.conns["b"], "a")
	if ba == nil {
		t.Fatalf("another member: %v", why)
	}
	if ba.back.Load() != all[3] {
		t.Error("packets do not go to the newest channel")
	}
	l.close(all[3])
	if ba.back.Load() != all[2] {
		t.Error("packets do not go to the newest channel that is left")
	}
	for _, c := range append(all[:3], ba) {
		l.close(c)
	}
	if len(l.channels)+len(l.leaves)+len(l.members) != 0 || ba.back.Load() != nil {
		t.Errorf("left: %v, %v, %v", l.channels, l.leaves, l.members)
	}
}

// What a full share or socket does not take waits for its turn, and not for long; members take turns by bytes.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		ab, ba := l.pair(t)
		a, b := l.conns["a"], l.conns["b"]
		a.room, b.room = 0, 0
		for range 200 { // a sends four times as much
			for range 4 {
				p, each := sealedTrain(ab.number, 1, 1000)
				l.Forward(p, each, a.at)
			}
			p, each := sealedTrain(ba.number, 1, 1000)
			l.Forward(p, each, b.at)
		}
		for _, c := range []*conn{a, b} {
			c.mu.Lock()
			c.room = 40 << 10
			c.sending = func() {
				if !l.queue.mu.TryLock() {
					t.Error("readers of the socket wait while something is sent")
					return
				}
				l.queue.mu.Unlock()
			}
			c.mu.Unlock()
		}
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		if a.bytes < 38<<10 || b.bytes < 38<<10 {
			t.Errorf("a got %d bytes, b %d", a.bytes, b.bytes)
		}
		time.Sleep(mostWait + 5*time.Millisecond)
		synctest.Wait()
		l.queue.mu.Lock()
		defer l.queue.mu.Unlock()
		if sent := (a.bytes + b.bytes) / 999; l.dropped[Late] != 1000-sent || l.queue.bytes != 0 || l.queue.full.Load() {
			t.Errorf("%d sent, dropped %v, %d bytes wait", sent, l.dropped, l.queue.bytes)
		}
	})
}

// A member that has used up its share waits for the next one. Packets of others are sent immediately, in their order.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		ab, ba := l.pair(t)
		l.shares["a"].left = 1500
		for range 3 {
			p, each := sealedTrain(ab.number, 1, 1000)
			l.Forward(p, each, l.conns["a"].at)
			p, each = sealedTrain(ba.number, 1, 1000)
			l.Forward(p, each, l.conns["b"].at)
		}
		if n, m := len(l.conns["b"].got), len(l.conns["a"].got); n != 1 || m != 3 {
			t.Errorf("b got %d packets, a %d", n, m)
		}
		time.Sleep(3 * time.Millisecond)
		synctest.Wait()
		if n := len(l.conns["b"].got); n != 1 {
			t.Errorf("b got %d packets beyond a's share", n-1)
		}
		l.queue.mu.Lock()
		l.shares["a"].left = -1
		l.queue.mu.Unlock()
		time.Sleep(3 * time.Millisecond)
		synctest.Wait()
		if n := len(l.conns["b"].got); n != 3 {
			t.Errorf("b got %d packets", n)
		}
		p, each := sealedTrain(ab.number, 1, 1000)
		l.Forward(p, each, l.conns["a"].at)
		if n := len(l.conns["b"].got); n != 4 {
			t.Error("once nothing waits a packet is not sent immediately")
		}
	})
}

// More than a member may have waiting drops its oldest packets, not those of others.
func TestBounds(t *testing.T) {
	dropped := 0
	q := newQueue(func(_ Reason, n int) { dropped += n })
	full := &channel{far: &conn{}}
	one, other := &member{id: "a", share: &share{left: -1}}, &member{id: "b", share: &share{left: -1}}
	q.send(other, full, make([]byte, 1000), 1000)
	for range 2 * memberBytes / 1000 {
		q.send(one, full, make([]byte, 1000), 1000)
	}
	if one.bytes > memberBytes || one.bytes < memberBytes-1000 || dropped == 0 || len(other.trains) != 1 || q.bytes != one.bytes+other.bytes {
		t.Errorf("%d and %d bytes wait of %d, %d dropped", one.bytes, other.bytes, q.bytes, dropped)
	}
}

// When much of many members waits, one packet of each further one may.
func TestBoundsOfMany(t *testing.T) {
	dropped := 0
	q := newQueue(func(_ Reason, n int) { dropped += n })
	full := &channel{far: &conn{}}
	const many, train, each = 2000, 60_000, 1000
	for range many {
		m := &member{share: &share{left: -1}}
		for range 2 {
			q.send(m, full, make([]byte, train), each)
		}
		if m.bytes == 0 {
			t.Fatal("nothing of a member waits")
		}
	}
	if q.bytes > allBytes+many*each || dropped*each+q.bytes != 2*many*train {
		t.Errorf("%d bytes wait, room is for %d; %d packets are dropped", q.bytes, allBytes, dropped)
	}
}

// A share that takes a part of a train takes its first packets; the rest waits, in its order.
func TestPartOfATrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		ab, _ := l.pair(t)
		b := l.conns["b"]
		l.shares["a"].left = 3000
		p, each := sealedTrain(ab.number, 5, 1000)
		l.Forward(p, each, l.conns["a"].at)
		if n := len(b.got); n != 3 {
			t.Errorf("b got %d packets of a share of three", n)
		}
		l.queue.mu.Lock()
		l.shares["a"].left = -1
		l.queue.mu.Unlock()
		time.Sleep(3 * time.Millisecond)
		synctest.Wait()
		for i, p := range b.got {
			if p[0] != byte(i) {
				t.Errorf("packet %d comes as number %d", p[0], i)
			}
		}
		if n := len(b.got); n != 5 || l.dropped[Late] != 0 || l.shares["a"].sent != 4999 {
			t.Errorf("b got %d packets, %d bytes; dropped %v", n, l.shares["a"].sent, l.dropped)
		}
	})
}

// Whatever comes: no more leaves than came, and only to a member that has given its leave to the owner of the address.
func FuzzForward(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7}, []byte{0x80, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ops, raw []byte) {
		l := newLab(t)
		ids := []peer.ID{"a", "b", "c", "x"}
		var open []*channel
		in := 0
		for _, op := range ops {
			from, to := l.conns[ids[op&3]], ids[op>>2&3]
			switch op >> 4 & 3 {
			case 0:
				if c, _ := l.open(from, to); c != nil {
					open = append(open, c)
				}
			case 1:
				if len(open) > 0 {
					i := int(op>>2) % len(open)
					l.close(open[i])
					open = slices.Delete(open, i, i+1)
				}
			case 2:
				if len(open) == 0 {
					continue
				}
				c := open[int(op>>2)%len(open)]
				b, each := sealedTrain(c.number, 1+int(op>>6), 30+int(op))
				in += len(b)
				may := c.back.Load() != nil && from == c.far
				before := len(l.conns[c.to].got)
				l.Forward(b, each, from.at)
				if got := len(l.conns[c.to].got) - before; may != (got > 0) {
					t.Fatalf("%d packets from %s on a channel of %s to %s; allowed: %v", got, from.id, c.pair.from, c.to, may)
				}
			case 3:
				in += len(raw)
				if len(raw) > 0 {
					l.Forward(bytes.Clone(raw), 1+int(op)%len(raw), from.at)
				}
			}
		}
		out := 0
		for _, c := range l.conns {
			out += c.bytes
		}
		if out > in || len(l.conns["x"].got) > 0 {
			t.Fatalf("%d bytes came, %d left", in, out)
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte{version, 1, 'a'}, []byte{version, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b, answer []byte) {
		if id, err := readRequest(bytes.NewReader(b)); err == nil && (b[0] != version || int(b[1]) != len(id) || len(b) < 2+len(id)) {
			t.Fatalf("%q of %x", id, b)
		}
		var a [answerLen]byte
		copy(a[:], answer)
		if n, err := parseAnswer(a); err == nil && (a[0] != version || a[1] != 0 || n > packet.MaxChannel) {
			t.Fatalf("%d of %x", n, a)
		}
	})
}

func BenchmarkForward(b *testing.B) {
	l := newLab(b)
	ab, _ := l.pair(b)
	full, each := sealedTrain(ab.number, 45, 1400)
	l.conns["b"].room = 0
	l.queue.full.Store(false)
	discard := &quiet{l.conns["b"]}
	ab.back.Load().far = discard
	buf := make([]byte, len(full))
	b.SetBytes(int64(len(full)))
	b.ReportAllocs()
	for b.Loop() {
		copy(buf, full)
		l.Forward(buf, each, l.conns["a"].at)
	}
}

// quiet is a far end that takes everything.
type quiet struct{ *conn }

func (quiet) Send(b []byte, _ int) (int, error) { return len(b), nil }
