package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/carrier/sealed"
)

// lab is a service with some peers and connections, whose paths begin, end and get packets of all kinds, and what is known of
// them.
type lab struct {
	t     *testing.T
	s     *Service
	d     *dispatcher
	conns [6]*Flight // two of each peer
	live  []*trial   // in the order they began
	seen  [][]byte   // sealed packets that were delivered
	next  uint32
}

// trial is one path.
type trial struct {
	*flightPath
	sealer *sealed.Sealer
	lanes  *testLanes
	want   int // datagrams
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, s: testService()}
	l.d = &dispatcher{in: &l.s.in}
	for i := range l.conns {
		l.conns[i] = testFlight(l.s, peer.ID(fmt.Sprint(i/2)), &testPath{})
	}
	return l
}

// begin begins a path on one of the connections.
func (l *lab) begin(conn int) {
	l.next++
	lanes := &testLanes{}
	x, ok := newTestPath(l.conns[conn], l.next, lanes)
	if !ok {
		l.t.Fatal("the index is taken")
	}
	l.live = append(l.live, &trial{flightPath: x, sealer: x.keyed(l.t, byte(l.next)), lanes: lanes})
}

// end ends the i-th path.
func (l *lab) end(i int) {
	x := l.live[i]
	l.live = append(l.live[:i:i], l.live[i+1:]...)
	x.end()
	if !x.lanes.closed {
		l.t.Fatal("a path has ended, and its lanes are open")
	}
}

// obey ends the paths that have to end, as their goroutines do.
func (l *lab) obey() {
	for i := len(l.live) - 1; i >= 0; i-- {
		if len(l.live[i].over) > 0 {
			l.end(i)
		}
	}
}

func (l *lab) step(op byte, n int) {
	if op%8 == 0 || len(l.live) == 0 {
		l.begin(n % len(l.conns))
		return
	}
	x := l.live[n%len(l.live)]
	seal := func(payload []byte) []byte {
		b, err := x.sealer.Seal(nil, payload)
		if err != nil {
			l.t.Fatal(err)
		}
		return b
	}
	switch op % 8 {
	case 1: // a datagram
		b := seal(datagram(binary.BigEndian.AppendUint32(nil, uint32(n))))
		l.seen = append(l.seen, bytes.Clone(b))
		x.want++
		l.d.take(b, testFrom())
	case 2: // one of the package's own, perhaps cut, or an empty one
		l.d.take(seal([]byte{kindChallenge + byte(n%4), 0, 0, 0, 0, 0, 0, byte(n), byte(n >> 8)}[:n%10]), testFrom())
	case 3: // changed on its way, in any byte but the index
		b := seal([]byte("changed"))
		b[4+n%(len(b)-4)] ^= 1 + byte(n)%255
		l.d.take(b, testFrom())
	case 4: // again
		if len(l.seen) > 0 {
			l.d.take(bytes.Clone(l.seen[n%len(l.seen)]), testFrom())
		}
	case 5: // longer than agreed on
		l.d.take(seal(make([]byte, maxPacket-sealed.Overhead+1+n)), testFrom())
	case 6:
		l.d.flush()
	case 7:
		if n%2 == 0 {
			l.end(n % len(l.live))
		} else {
			l.obey()
		}
	}
}

// check holds what must be true whatever happened.
func (l *lab) check() {
	l.t.Helper()
	l.d.flush()
	for _, x := range l.live {
		if len(x.lanes.got) != x.want || x.lanes.closed {
			l.t.Fatalf("%d datagrams of %d were delivered, closed: %v", len(x.lanes.got), x.want, x.lanes.closed)
		}
	}
	l.obey()
	perConn, perPeer := map[*Flight]int{}, map[peer.ID]int{}
	for _, x := range l.live {
		perConn[x.Flight]++
		perPeer[x.peer()]++
		if perConn[x.Flight] > 2 || perPeer[x.peer()] > maxPaths {
			l.t.Fatalf("%d paths on a connection, %d of a peer", perConn[x.Flight], perPeer[x.peer()])
		}
	}
	for len(l.live) > 0 {
		l.end(0)
	}
	if n := len(*l.s.in.paths.Load()); n != 0 {
		l.t.Fatalf("%d paths are left", n)
	}
	for _, in := range l.s.in.inbound {
		if len(in.live) > 0 {
			l.t.Fatalf("%d paths are left", len(in.live))
		}
	}
}

// FuzzPaths: whatever peers begin, send and end, in whatever order, what a path's other end sealed is delivered to
// its lanes, once, while it lives; nothing else is; and few paths live.
func FuzzPaths(f *testing.F) {
	f.Add([]byte{0, 0, 1, 5, 6, 0, 4, 0, 3, 9, 5, 1, 2, 3, 7, 0, 1, 1})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 2, 7, 1, 4, 0, 4, 1, 6, 0, 7, 0})
	f.Add(bytes.Repeat([]byte{0, 3, 1, 7, 0, 2}, 20))
	f.Fuzz(func(t *testing.T, script []byte) {
		l := newLab(t)
		for ; len(script) > 1; script = script[2:] {
			l.step(script[0], int(script[1]))
		}
		l.check()
	})
}

// FuzzFlightHello: what is read of an offer is what it says, or it is refused.
func FuzzFlightHello(f *testing.F) {
	f.Add(goldenHello)
	f.Add(make([]byte, flightHelloLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h flightHello
		if err := h.read(bytes.NewReader(b)); err == nil && (len(b) < flightHelloLen || !bytes.Equal(h.bytes(), b[:flightHelloLen]) || h.index > sealed.MaxIndex) {
			t.Errorf("%x is read as %+v", b, h)
		}
	})
}
