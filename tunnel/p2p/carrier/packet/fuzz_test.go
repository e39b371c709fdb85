package packet

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"log/slog"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/carrier/sealed"
)

// lab is a service with some peers and paths, whose sessions begin, end and get packets of all kinds, and what is known of
// them.
type lab struct {
	t     *testing.T
	s     *Service
	d     *dispatcher
	paths [6]*sending // two of each peer
	live  []*trial    // in the order they began
	seen  [][]byte    // sealed packets that were delivered
	next  uint32
}

// trial is one session.
type trial struct {
	*receiver
	sealer *sealed.Sealer
	sink   *testSink
	want   int // datagrams
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, s: New(Config{Spawn: func(f func()) bool { go f(); return true }, Log: slog.New(slog.DiscardHandler)})}
	l.d = &dispatcher{in: &l.s.in}
	for i := range l.paths {
		l.paths[i] = sendingOn(l.s, &testPath{})
	}
	return l
}

// begin begins a session on one of the paths.
func (l *lab) begin(path int) {
	l.next++
	secret := bytes.Repeat([]byte{byte(l.next)}, sealed.SecretLen)
	sealer, err := sealed.NewSealer(tls.TLS_AES_128_GCM_SHA256, secret, l.next)
	if err != nil {
		l.t.Fatal(err)
	}
	opener, err := sealed.NewOpener(tls.TLS_AES_128_GCM_SHA256, secret)
	if err != nil {
		l.t.Fatal(err)
	}
	x := &trial{sealer: sealer, sink: &testSink{}}
	x.receiver = newReceiver(l.paths[path], peer.ID(fmt.Sprint(path/2)))
	x.index, x.opener, x.receiver.sink = l.next, opener, x.sink
	if !l.s.in.add(x.receiver) {
		l.t.Fatal("the index is taken")
	}
	l.live = append(l.live, x)
}

// end ends the i-th session.
func (l *lab) end(i int) {
	x := l.live[i]
	l.live = append(l.live[:i:i], l.live[i+1:]...)
	l.s.in.remove(x.receiver)
	if !x.sink.closed {
		l.t.Fatal("a session has ended, and its sink is open")
	}
}

// obey ends the sessions that have to end, as their goroutines do.
func (l *lab) obey() {
	for i := len(l.live) - 1; i >= 0; i-- {
		if len(l.live[i].over) > 0 {
			l.end(i)
		}
	}
}

func (l *lab) step(op byte, n int) {
	if op%8 == 0 || len(l.live) == 0 {
		l.begin(n % len(l.paths))
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
		b := seal(binary.BigEndian.AppendUint32(nil, uint32(n)))
		l.seen = append(l.seen, bytes.Clone(b))
		x.want++
		l.d.take(b, nil)
	case 2: // one of the package's own, or an empty one
		l.d.take(seal([]byte{kindProbe + byte(n%4), 0, 0, 0, byte(n), byte(n >> 8), 0, 0, 0}[:n%10]), nil)
	case 3: // changed on its way, in any byte but the index
		b := seal([]byte("changed"))
		b[4+n%(len(b)-4)] ^= 1 + byte(n)%255
		l.d.take(b, nil)
	case 4: // again
		if len(l.seen) > 0 {
			l.d.take(bytes.Clone(l.seen[n%len(l.seen)]), nil)
		}
	case 5: // longer than agreed on
		l.d.take(seal(make([]byte, maxPacket-sealed.Overhead+1+n)), nil)
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
		if len(x.sink.got) != x.want || x.sink.closed {
			l.t.Fatalf("%d datagrams of %d were delivered, closed: %v", len(x.sink.got), x.want, x.sink.closed)
		}
	}
	l.obey()
	perPath, perPeer := map[*sending]int{}, map[peer.ID]int{}
	for _, x := range l.live {
		perPath[x.out]++
		perPeer[x.peer]++
		if perPath[x.out] > 2 || perPeer[x.peer] > maxReceivers {
			l.t.Fatalf("%d sessions on a path, %d of a peer", perPath[x.out], perPeer[x.peer])
		}
	}
	for len(l.live) > 0 {
		l.end(0)
	}
	if n := len(*l.s.in.receivers.Load()); n != 0 {
		l.t.Fatalf("%d receivers are left", n)
	}
	for _, in := range l.s.in.inbound {
		if len(in.live) > 0 {
			l.t.Fatalf("%d sessions are left", len(in.live))
		}
	}
}

// FuzzSessions: whatever peers begin, send and end, in whatever order, what a session's own sender sealed is delivered to
// its sink, once, while it lives; nothing else is; and few sessions live.
func FuzzSessions(f *testing.F) {
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

// FuzzSetup: an answer is taken as it was meant, or refused.
func FuzzSetup(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 7, 0x23, 0x28})
	f.Add([]byte{2, 0xff, 0xff, 0xff, 0xff, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var answer [answerLen]byte
		copy(answer[:], b)
		index, largest, err := parseAnswer(answer)
		if err != nil {
			return
		}
		if index > sealed.MaxIndex || largest < basePacket {
			t.Errorf("index %d, size %d", index, largest)
		}
		sizes := packetSizes(false, largest)
		if last := sizes[len(sizes)-1]; last > largest || last > maxPacket {
			t.Errorf("packets of %d are tried, the peer takes %d", last, largest)
		}
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
