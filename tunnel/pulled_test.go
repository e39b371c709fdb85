package tunnel_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
)

// taker takes what a's lanes have, and hands it to b's: an underlay without loss.
type taker struct {
	mu     sync.Mutex
	from   *tunnel.Pulled
	to     *tunnel.Pulled
	room   int
	flying []tunnel.Frame // taken, and not there yet
	keeps  bool           // what is taken stays on its way
	woken  chan struct{}
	end    chan struct{}
	wg     sync.WaitGroup
}

func newTaker(t *testing.T, from, to *node) *taker {
	x := &taker{from: from.Pull(nodeB), to: to.Pull(nodeA), room: 1400, woken: make(chan struct{}, 1), end: make(chan struct{})}
	x.wg.Go(func() {
		for {
			select {
			case <-x.woken:
				x.move()
			case <-x.end:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(x.end)
		x.wg.Wait()
		x.down()
		x.from.Close()
		x.to.Close()
	})
	return x
}

func (x *taker) wake() {
	select {
	case x.woken <- struct{}{}:
	default:
	}
}

func (x *taker) up() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.from.Up(x.wake)
}

// down gives back what is on its way.
func (x *taker) down() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.from.Down(x.flying)
	x.flying, x.keeps = nil, false
}

func (x *taker) move() {
	x.mu.Lock()
	defer x.mu.Unlock()
	line := tunnel.Line{RTT: time.Millisecond, Rate: 1e9, Room: x.room}
	for {
		stream, datagram := x.from.Waits()
		if !stream && !datagram {
			break
		}
		if b := x.from.TakeDatagram(line, x.room); b != nil {
			x.to.Datagram(bytes.Clone(b))
		}
		f, bucket := x.from.Take(line)
		switch {
		case f == nil:
		case x.keeps:
			x.flying = append(x.flying, f)
		default:
			b := bytes.Clone(f.Bytes())
			x.to.Stream(bucket, b[:len(b)/2])
			x.to.Stream(bucket, b[len(b)/2:])
			f.Done()
		}
	}
	x.to.Flush()
}

// A flow moves between carriers and an underlay that takes its packets, again and again: every packet arrives, once and in order.
func TestPulledTakesOver(t *testing.T) {
	const total, window = 4000, 128
	net, a, b, path := pair(t, tunnel.Limits{HoldTime: time.Minute, SwitchTime: time.Minute, WaitTime: time.Minute, DelayTarget: time.Minute})
	x := newTaker(t, a, b)
	rnd := rand.New(rand.NewPCG(3, 4))
	up := false
	for i := range total {
		if i%200 == 199 {
			if up = !up; up {
				b.packets(t, i-window/2) // the carrier is known there
				path.Stall()             // what it has comes late
				time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, path.Resume)
				x.up()
			} else {
				b.packets(t, i-20)
				x.mu.Lock()
				x.keeps = true
				x.mu.Unlock()
				for range 10 {
					a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("filling")))
				}
				fair.Eventually(t, patience, "something is on its way", fair.True(func() bool {
					x.mu.Lock()
					defer x.mu.Unlock()
					return len(x.flying) > 0
				}))
				x.down()
			}
		}
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, binary.BigEndian.AppendUint64(make([]byte, rnd.IntN(1000)), uint64(i))))
		if i%32 == 0 && i > window {
			b.packets(t, i-window)
		}
	}
	fillings := total / 400 * 10
	n := 0
	for _, p := range b.packets(t, total+fillings) {
		if bytes.HasSuffix(p, []byte("filling")) {
			continue
		}
		if number(p) != uint64(n) {
			t.Fatalf("packet %d has number %d", n, number(p))
		}
		n++
	}
	if n := net.Opened(); n < total/400 {
		t.Errorf("%d carriers were opened", n)
	}
	if d := a.Stats().Total.Drops.Total() + b.Stats().Total.Drops.Total(); d != 0 {
		t.Errorf("%d drops", d)
	}
}

// While an underlay takes the packets there is no carrier; datagrams are cut to what it takes, and one that fits no two goes as a frame.
func TestPulledDatagrams(t *testing.T) {
	net, a, b, _ := pair(t, tunnel.Limits{})
	x := newTaker(t, a, b)
	x.up()
	sent := [][]byte{tunneltest.UDPPacket(addrA, addrB, make([]byte, 1450)), tunneltest.UDPPacket(addrA, addrB, []byte("small")),
		tunneltest.UDPPacket(addrA, addrB, make([]byte, 5000)), tunneltest.TCPPacket(addrA, addrB, make([]byte, 60000))}
	for i, p := range sent {
		a.dev.Inject(p)
		if got := b.packets(t, i+1)[i]; !bytes.Equal(got, p) {
			t.Errorf("packet %d arrived with %d bytes, sent %d", i, len(got), len(p))
		}
	}
	if n := net.Opened(); n != 0 {
		t.Errorf("%d carriers were opened", n)
	}
	if s := a.Stats().Total; s.TxPackets != 4 || s.Drops.Total() != 0 {
		t.Errorf("stats of a: %+v", s)
	}
}

// What is no frame counts as malformed, and its bucket is ignored until it begins again.
func TestPulledMalformed(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	x := newTaker(t, a, b)
	x.mu.Lock()
	defer x.mu.Unlock()
	good := append([]byte{2, 0, 0, 0}, make([]byte, 10)...)
	good = append(good, tunneltest.TCPPacket(addrA, addrB, []byte("good"))...)
	good[3] = byte(len(good) - 4)
	x.to.Stream(1, []byte{9, 0, 0, 50})
	x.to.Stream(1, good) // out of step
	x.to.Stream(2, good)
	b.packets(t, 1)
	if d := b.Stats().Total.Drops; d[tunnel.DropBadFrame] != 1 || d.Total() != 1 {
		t.Errorf("drops %v", d)
	}
	x.to.Restart(1)
	x.to.Stream(1, good)
	b.packets(t, 2)
}
