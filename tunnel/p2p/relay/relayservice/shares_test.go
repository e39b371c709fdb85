package relayservice

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
)

// user is a member that sends through a link that more than one wants.
type user struct {
	wants   float64 // bytes a tick
	flows   float64 // TCP connections, which the link serves the same way
	perTick float64 // bytes that it got, at the end
}

// link is what arrives of offers through a link that takes capacity, and serves every flow the same way.
func link(capacity float64, users []*user, offers []float64) []float64 {
	out := make([]float64, len(offers))
	for range users { // each round satisfies at least one, or is the last
		left, flows := capacity, 0.0
		for i, u := range users {
			left -= out[i]
			if out[i] < offers[i] {
				flows += u.flows
			}
		}
		for i, u := range users {
			if out[i] < offers[i] {
				out[i] = min(offers[i], out[i]+left*u.flows/flows)
			}
		}
	}
	return out
}

// carry lets users send for so many ticks through a link.
func carry(s *shares, capacity float64, users []*user, ticks int) {
	senders := make([]*sender, len(users))
	for i := range users {
		senders[i] = s.join(peer.ID(strconv.Itoa(i)))
	}
	last := ticks / 10
	for tick := range ticks {
		level := float64(s.level.Load())
		offers := make([]float64, len(users))
		for i, u := range users {
			offers[i] = min(u.wants, level)
		}
		for i, n := range link(capacity, users, offers) {
			senders[i].sent(int(n))
			senders[i].held.Store(n >= level)
			if tick >= ticks-last {
				users[i].perTick += n / float64(last)
			}
		}
		s.tick(shareTick)
	}
	for i := range users {
		s.leave(peer.ID(strconv.Itoa(i)))
	}
}

// A member who floods has no more than the others who want something, and everything that they leave.
func TestShares(t *testing.T) {
	const capacity = 1 << 20 // bytes a tick
	bandwidth := capacity / shareTick.Seconds()
	for _, c := range []struct {
		name  string
		users []user
		least []float64 // of the bandwidth
		most  []float64
	}{
		{"one alone", []user{{wants: 3 * capacity, flows: 1}}, []float64{0.99}, []float64{1}},
		{"a flow and its acknowledgements", []user{{wants: 3 * capacity, flows: 1}, {wants: capacity / 1000, flows: 1}},
			[]float64{0.99, 0.0009}, []float64{1, 0.001}},
		{"two", []user{{wants: 3 * capacity, flows: 5}, {wants: 3 * capacity, flows: 5}}, []float64{0.49, 0.49}, []float64{0.51, 0.51}},
		{"a flood", []user{{wants: 3 * capacity, flows: 1000}, {wants: 3 * capacity, flows: 1}}, []float64{0.49, 0.49}, []float64{0.51, 0.51}},
		{"a flood, and one who wants little", []user{{wants: 3 * capacity, flows: 1000}, {wants: capacity / 10, flows: 1}},
			[]float64{0.85, 0.099}, []float64{0.9, 0.1}},
		{"three", []user{{wants: 3 * capacity, flows: 80}, {wants: 3 * capacity, flows: 8}, {wants: capacity / 5, flows: 1}},
			[]float64{0.36, 0.36, 0.19}, []float64{0.41, 0.41, 0.2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			users := make([]*user, len(c.users))
			for i := range users {
				u := c.users[i]
				users[i] = &u
			}
			carry(newShares(bandwidth, NewMetrics(Limits{})), capacity, users, 500)
			for i, u := range users {
				if part := u.perTick / capacity; part < c.least[i] || part > c.most[i]+1e-6 {
					t.Errorf("member %d has %.3f of the bandwidth, want %.3f to %.3f", i, part, c.least[i], c.most[i])
				}
			}
		})
	}
}

// The control: where nothing is divided, a member has what its connections get.
func TestNoShares(t *testing.T) {
	const capacity = 1 << 20
	users := []*user{{wants: 3 * capacity, flows: 1000}, {wants: 3 * capacity, flows: 1}}
	carry(newShares(1e15, NewMetrics(Limits{})), capacity, users, 500)
	if part := users[1].perTick / capacity; part > 0.01 {
		t.Errorf("beside 1000 connections one has %.3f of the bandwidth without being helped", part)
	}
}

// While there is room nobody waits, and a level that is reached ends with its tick.
func TestLevel(t *testing.T) {
	s := newShares(1e6, NewMetrics(Limits{}))
	a, b := s.join("a"), s.join("b")
	a.sent(5000)
	b.sent(5000)
	if s.tick(shareTick); s.level.Load() != noLimit {
		t.Error("a level at half of the bandwidth")
	}
	a.sent(15000)
	b.sent(5000)
	s.tick(shareTick)
	if l := s.level.Load(); l != 20000-6250 {
		t.Errorf("level %d, want what b leaves of 20000 bytes", l)
	}
	a.sent(20000)
	done := make(chan struct{})
	go func() { a.wait(); close(done) }()
	for !a.held.Load() {
		runtime.Gosched()
	}
	b.wait() // does not block
	s.tick(shareTick)
	<-done
	s.leave("a")
	s.leave("b")
	for range 3 {
		s.tick(shareTick)
	}
	if len(s.senders) != 0 {
		t.Errorf("%d senders are left", len(s.senders))
	}
}

// A member that closes its channels and opens others has not got another share by that, and what it has sent is divided.
func TestShareOfWhoComesAgain(t *testing.T) {
	s := newShares(1e6, NewMetrics(Limits{}))
	s.join("b").sent(5000)
	for range 3 {
		a := s.join("a")
		a.sent(10000)
		a.Leave()
	}
	if s.tick(shareTick); s.level.Load() == noLimit {
		t.Fatal("what a has sent does not count")
	}
	a := s.join("a")
	a.Take(int(s.level.Load()), 1)
	a.Leave()
	if n := s.join("a").Take(1, 1); n != 0 {
		t.Error("a has another share")
	}
}

// A train is cut where its member's share ends, and what goes beyond by a packet is taken from the next one.
func TestTake(t *testing.T) {
	s := newShares(1e6, NewMetrics(Limits{}))
	a, b := s.join("a"), s.join("b")
	a.sent(18000)
	b.sent(4100)
	s.tick(shareTick)
	level := int(s.level.Load())
	if n := a.Take(60_000, 1000); n != (level+999)/1000*1000 {
		t.Errorf("%d bytes of %d are taken", n, level)
	}
	b.sent(4100)
	taken := (level + 999) / 1000 * 1000
	s.tick(shareTick)
	if n := a.Take(60_000, 1); n != int(s.level.Load())-(taken-level) {
		t.Errorf("%d bytes are taken of %d, %d of which are owed", n, s.level.Load(), taken-level)
	}
	if n := a.Take(1, 1); n != 0 {
		t.Error("more than a share is taken")
	}
}
