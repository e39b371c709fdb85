package tunnel_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
)

// number is the sequence number that takeover's packets carry.
func number(p []byte) uint64 { return binary.BigEndian.Uint64(p[len(p)-8:]) }

// TestTakeOver moves a flow at random times between paths that live: every
// packet arrives, once and in order.
func TestTakeOver(t *testing.T) {
	const total, window = 6000, 256
	// No time must run out in a test of order, however slow the machine.
	net, a, b, _ := pair(t, tunnel.Limits{
		HoldTime: time.Minute, SwitchTime: time.Minute, WaitTime: time.Minute, DelayTarget: time.Minute, StreamsPerLane: 1000,
	})
	t.Cleanup(func() {
		for _, err := range net.Errors() {
			t.Errorf("receive: %v", err)
		}
		t.Logf("drops at a: %v", a.Stats().Total.Drops)
	})
	paths := []*tunneltest.Path{tunneltest.NewPath(8 << 10), tunneltest.NewPath(200 << 10), tunneltest.NewPath(3000)}
	rnd := rand.New(rand.NewPCG(1, 2))
	next := 0
	moves := 0
	for i := range total {
		if i == next {
			next += rnd.IntN(400)
			moves++
			old := paths[rnd.IntN(len(paths))]
			net.SetPath(nodeA, nodeB, paths[rnd.IntN(len(paths))])
			if rnd.IntN(2) == 0 { // what is on the old path comes late
				old.Stall()
				time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, old.Resume)
			}
			a.PathChanged(nodeB)
		}
		data := binary.BigEndian.AppendUint64(make([]byte, rnd.IntN(1000)), uint64(i))
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, data))
		if i%32 == 0 && i > window {
			b.packets(t, i-window) // no more in flight than a queue holds
		}
	}
	for i, p := range b.packets(t, total) {
		if number(p) != uint64(i) {
			t.Fatalf("packet %d has number %d", i, number(p))
		}
	}
	if n := net.Opened(); n < 10 {
		t.Errorf("%d moves opened %d carriers only", moves, n)
	}
	t.Logf("%d moves, %d carriers", moves, net.Opened())
}

// TestTakeOverOfDyingPaths: paths are killed at random times with packets on
// them. What is lost is lost, but nothing comes twice or out of order, and
// what a carrier had not taken is not lost.
func TestTakeOverOfDyingPaths(t *testing.T) {
	const total, window = 2000, 64
	net, a, b, path := pair(t, tunnel.Limits{
		// It ends where a path dies before the far end has read the HELLO.
		HoldTime: time.Second, SwitchTime: time.Minute, WaitTime: time.Minute, DelayTarget: time.Minute,
		RetryMin: time.Millisecond, RetryMax: time.Millisecond, StreamsPerLane: 1000,
	})
	rnd := rand.New(rand.NewPCG(3, 4))
	const room = 3000 // a path holds so much at most: two packets or so
	kills := 0
	for i := range uint64(total) {
		if rnd.IntN(100) == 0 {
			kills++
			path.Kill()
			path = tunneltest.NewPath(room)
			net.SetPath(nodeA, nodeB, path)
			switch rnd.IntN(3) {
			case 0:
				a.PathLost(nodeB)
			case 1:
				a.PathChanged(nodeB)
			}
		}
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, binary.BigEndian.AppendUint64(make([]byte, 1000), i)))
		if i > window {
			fair.Eventually(t, patience, "the lane sends", fair.True(func() bool { return a.Stats().Total.TxPackets >= i-window }))
		}
	}
	fair.Eventually(t, patience, "the last one arrives", fair.True(func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.frames) > 0 && number(b.frames[len(b.frames)-1]) == total-1
	}))
	got := b.packets(t, 1)
	for i := 1; i < len(got); i++ {
		if number(got[i]) <= number(got[i-1]) {
			t.Fatalf("%d follows %d", number(got[i]), number(got[i-1]))
		}
	}
	// The first path holds 64 kB, and a reader another few.
	if lost := total - len(got); lost > 70+8*kills {
		t.Errorf("%d packets lost by %d kills", lost, kills)
	}
	t.Logf("%d packets lost by %d kills", total-len(got), kills)
}

// TestLossOfAnotherPath: a carrier whose own path lives is not reset; its lane
// moves in order, if it moves.
func TestLossOfAnotherPath(t *testing.T) {
	net, a, b, _ := pair(t, tunnel.Limits{HoldTime: time.Minute})
	for i := range 3 {
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("x")))
		b.packets(t, i+1)
		a.PathLost(nodeB)
		fair.Eventually(t, patience, "the lane moves", fair.True(func() bool {
			l := a.Stats().Peers[0].Lanes[tunnel.StreamLane]
			return l.State == tunnel.LaneUp && l.Epoch == uint64(i+2)
		}))
	}
	fair.Eventually(t, patience, "one stream is left", fair.True(func() bool { return b.Stats().Peers[0].Streams == 1 }))
	for _, err := range net.Errors() {
		t.Errorf("receive: %v", err)
	}
}

// TestDeadPathIsLeft: the old path swallows everything. Packets that it had not taken are sent over the next one, and the
// receiver does not wait forever.
func TestDeadPathIsLeft(t *testing.T) {
	for _, how := range []string{"lost", "changed", "killed"} {
		t.Run(how, func(t *testing.T) {
			// On a slow machine packets wait long: that is not what drops them here.
			net, a, b, path := pair(t, tunnel.Limits{WaitTime: time.Minute, DelayTarget: time.Minute})
			a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, make([]byte, 8)))
			b.packets(t, 1)
			path.Stall()
			const more = 300 // of 1 kB: the path holds 64
			for i := range more {
				a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, binary.BigEndian.AppendUint64(make([]byte, 1000), uint64(i))))
			}
			better := tunneltest.NewPath(64 << 10)
			net.SetPath(nodeA, nodeB, better)
			switch how {
			case "lost":
				a.PathLost(nodeB)
			case "changed": // the write is stuck, the move resets it
				a.PathChanged(nodeB)
			case "killed":
				path.Kill()
			}
			fair.Eventually(t, patience, "the last packet arrives", fair.True(func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				last := b.frames[len(b.frames)-1]
				return number(last) == more-1
			}))
			got := b.packets(t, 1)
			if len(got) < more-64 {
				t.Errorf("%d of %d packets arrived", len(got), more)
			}
			for i := 2; i < len(got); i++ {
				if number(got[i]) != number(got[i-1])+1 {
					t.Errorf("packet %d follows %d", number(got[i]), number(got[i-1]))
				}
			}
		})
	}
}

// said is what the packets of a test of order say.
func said(packets [][]byte) (words []string) {
	for _, p := range packets {
		words = append(words, string(p[40:]))
	}
	return words
}

// say makes a packet from b to a.
func say(word string) []byte { return tunneltest.TCPPacket(addrB, addrA, []byte(word)) }

// TestNewEpochWaits: frames of a new epoch are held until the old one ends, however it does.
func TestNewEpochWaits(t *testing.T) {
	for name, end := range map[string]func(*raw){
		"mark":  func(s *raw) { s.frame(3, nil) },
		"eof":   func(s *raw) { _ = s.w.Close() },
		"error": func(s *raw) { _ = s.w.CloseWithError(errors.New("reset")) },
	} {
		t.Run(name, func(t *testing.T) {
			a := alone(t, tunnel.Limits{HoldTime: time.Hour})
			first := a.raw(nodeB, tunnel.StreamLane, 7, 1, 0)
			defer first.w.Close()
			first.packet(say("1"))
			a.packets(t, 1)
			second := a.raw(nodeB, tunnel.StreamLane, 7, 2, 1)
			defer second.w.Close()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				second.packet(say("3")) // its reader takes it, and waits
				second.packet(say("4"))
			}()
			first.packet(say("2"))
			select {
			case <-sent:
				t.Error("the second carrier is read on before the first is over")
			case <-time.After(20 * time.Millisecond):
			}
			end(first)
			<-sent
			if got := said(a.packets(t, 4)); !slices.Equal(got, []string{"1", "2", "3", "4"}) {
				t.Errorf("order: %q", got)
			}
		})
	}
}

// TestNewEpochComesFirst: the new carrier overtakes the old one's HELLO.
func TestNewEpochComesFirst(t *testing.T) {
	a := alone(t, tunnel.Limits{HoldTime: time.Hour})
	second := a.raw(nodeB, tunnel.StreamLane, 7, 2, 1)
	defer second.w.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		second.packet(say("2"))
	}()
	first := a.raw(nodeB, tunnel.StreamLane, 7, 1, 0)
	defer first.w.Close()
	first.packet(say("1"))
	first.frame(3, nil)
	<-sent
	if got := said(a.packets(t, 2)); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("order: %q", got)
	}
}

// TestSilentEpochIsLeft: the old carrier says nothing, as on a dead path; the new one is read after HoldTime.
func TestSilentEpochIsLeft(t *testing.T) {
	a := alone(t, tunnel.Limits{HoldTime: time.Millisecond})
	first := a.raw(nodeB, tunnel.StreamLane, 7, 1, 0)
	defer first.w.Close()
	second := a.raw(nodeB, tunnel.StreamLane, 7, 2, 1)
	defer second.w.Close()
	second.packet(say("2"))
	if got := said(a.packets(t, 1)); !slices.Equal(got, []string{"2"}) {
		t.Errorf("order: %q", got)
	}
}

// TestRestartedPeerWaitsForNothing: epochs of another process of the sender do not wait for those of its former life,
// although that one's streams still hang; among each other they wait.
func TestRestartedPeerWaitsForNothing(t *testing.T) {
	a := alone(t, tunnel.Limits{HoldTime: time.Hour})
	old := a.raw(nodeB, tunnel.StreamLane, 7, 9, 0)
	defer old.w.Close()
	old.packet(say("old"))
	a.packets(t, 1)
	first := a.raw(nodeB, tunnel.StreamLane, 8, 1, 0)
	defer first.w.Close()
	first.packet(say("1"))
	a.packets(t, 2)
	second := a.raw(nodeB, tunnel.StreamLane, 8, 2, 1)
	defer second.w.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		second.packet(say("3"))
		second.packet(say("4")) // is read once the one before it is written
	}()
	old.packet(say("late"))
	old.frame(3, nil) // ends nothing of the new process
	select {
	case <-sent:
		t.Error("the second carrier does not wait for the first")
	case <-time.After(20 * time.Millisecond):
	}
	first.packet(say("2"))
	first.frame(3, nil)
	<-sent
	if got := said(a.packets(t, 6)); !slices.Equal(got, []string{"old", "1", "late", "2", "3", "4"}) {
		t.Errorf("order: %q", got)
	}
}

// TestUpgradeDuringFirstOpen: a better path that appears while the first carrier
// is being opened is used, though that attempt knew nothing of it.
func TestUpgradeDuringFirstOpen(t *testing.T) {
	net, a, b, first := pair(t, tunnel.Limits{})
	better := tunneltest.NewPath(64 << 10)
	opening, proceed := net.HoldOpen()
	a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("1")))
	<-opening // with the first path chosen
	net.SetPath(nodeA, nodeB, better)
	a.PathChanged(nodeB)
	close(proceed)
	fair.Eventually(t, patience, "two carriers, and one for answers", fair.True(func() bool { return net.Opened() == 3 }))
	fair.Eventually(t, patience, "the lane is up", fair.True(func() bool { return a.Stats().Peers[0].Lanes[tunnel.StreamLane].State == tunnel.LaneUp }))
	b.packets(t, 1) // what is in flight on a path that is killed is lost
	first.Kill()
	a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("2")))
	b.packets(t, 2)
}
