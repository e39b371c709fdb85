package decide

import (
	"errors"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/mesh"
)

// bench plays a track: a world in which answers come back, or do not.
type bench struct {
	t      *testing.T
	track  *track
	now    time.Time
	answer func(p probe) bool // whether a probe is answered
	delay  time.Duration      // of answers
	hears  bool               // the peer's requests come in, every 250 ms
	probes int
	big    int
	under  []pending // answers under way
}

type pending struct {
	at  time.Time
	seq uint64
}

func newBench(t *testing.T) *bench {
	now := time.Unix(1000, 0)
	return &bench{t: t, now: now, delay: time.Millisecond, answer: func(probe) bool { return true },
		track: newTrack(candidate{kind: mesh.Native, link: "eth0", mtu: 1500}, now)}
}

// run plays d in steps of a millisecond.
func (b *bench) run(d time.Duration) {
	for end := b.now.Add(d); b.now.Before(end); b.now = b.now.Add(time.Millisecond) {
		for len(b.under) > 0 && !b.under[0].at.After(b.now) {
			b.track.answer(b.now, b.under[0].seq)
			b.under = b.under[1:]
		}
		if b.hears && b.now.UnixMilli()%250 == 0 {
			b.track.request(b.now)
		}
		if p, ok := b.track.tick(b.now); ok {
			b.probes++
			if p.full {
				b.big++
			}
			if b.answer(p) {
				b.under = append(b.under, pending{b.now.Add(b.delay), p.seq})
			}
		}
	}
}

func (b *bench) want(s state) {
	b.t.Helper()
	if b.track.state != s {
		b.t.Fatalf("%s, want %s (%s)", b.track.state, s, b.track.why)
	}
}

// until plays until the state is s; it returns how long that took.
func (b *bench) until(s state, most time.Duration) time.Duration {
	b.t.Helper()
	start := b.now
	for b.track.state != s && b.now.Sub(start) < most {
		b.run(time.Millisecond)
	}
	b.want(s)
	return b.now.Sub(start)
}

func all(probe) bool  { return true }
func none(probe) bool { return false }

func TestTrackIsProvenQuickly(t *testing.T) {
	b := newBench(t)
	if took := b.until(up, time.Second); took > 200*time.Millisecond {
		t.Errorf("up after %v", took)
	}
	b = newBench(t)
	b.delay = 150 * time.Millisecond // a radio link
	b.until(up, 2*time.Second)
	b.run(time.Minute)
	b.want(up)
}

func TestTrackLeavesAndReturns(t *testing.T) {
	b := newBench(t)
	b.until(up, time.Second)
	b.run(10 * time.Second)
	b.answer = none
	if took := b.until(failing, time.Second); took > 600*time.Millisecond {
		t.Errorf("failing after %v", took)
	}
	if took := b.until(down, 2*time.Second); took > 600*time.Millisecond {
		t.Errorf("down %v after failing", took)
	}
	if !strings.Contains(b.track.why, "without an answer") {
		t.Errorf("why: %q", b.track.why)
	}
	b.answer = all
	if took := b.until(up, time.Minute); took > 3*time.Second {
		t.Errorf("up again after %v", took)
	}
}

func TestTrackSurvivesOneLoss(t *testing.T) {
	b := newBench(t)
	b.until(up, time.Second)
	lost := 0
	b.answer = func(p probe) bool { lost++; return lost%2 == 0 }
	b.run(5 * time.Second)
	if b.track.state == down {
		t.Error("every other probe is lost, and it is down")
	}
	b.answer = all
	b.run(time.Second)
	b.want(up)
}

func TestTrackNeedsFullSize(t *testing.T) {
	b := newBench(t)
	b.answer = func(p probe) bool { return !p.full }
	b.until(down, 5*time.Second)
	if !strings.Contains(b.track.why, "1500 bytes are lost, small ones pass") {
		t.Errorf("why: %q", b.track.why)
	}
	// A hole that comes later.
	b = newBench(t)
	b.until(up, time.Second)
	b.answer = func(p probe) bool { return !p.full }
	b.until(down, 2*time.Second)
	// And one under a path without traffic, found with the first packets.
	b = newBench(t)
	b.until(up, time.Second)
	b.run(2 * busyFor)
	b.answer = func(p probe) bool { return !p.full }
	b.run(3 * time.Second)
	b.track.traffic(b.now)
	b.until(down, 2*time.Second)
}

func TestTrackIdleIsCheap(t *testing.T) {
	b := newBench(t)
	b.until(up, time.Second)
	b.run(busyFor)
	b.probes, b.big = 0, 0
	b.run(10 * time.Minute)
	b.want(up)
	if b.probes > 42 || b.big > b.probes/fullNth+1 {
		t.Errorf("%d probes in ten idle minutes, %d of them full", b.probes, b.big)
	}
	b.answer = none
	if took := b.until(down, time.Minute); took > idleMost+time.Second {
		t.Errorf("an idle path is left after %v", took)
	}
	// With the first packets it is left as fast as with traffic, whoever noticed them first.
	for what, begins := range map[string][]func(*track, time.Time){
		"here": {(*track).traffic}, "the peer": {(*track).tells}, "the peer, then here": {(*track).tells, (*track).traffic},
	} {
		b = newBench(t)
		b.until(up, time.Second)
		b.run(busyFor + 2*time.Minute)
		b.answer = none
		for _, f := range begins {
			f(b.track, b.now)
		}
		if took := b.until(down, time.Minute); took > time.Second {
			t.Errorf("%s: an idle path is left %v after the first packets", what, took)
		}
	}
}

func TestTrackIsDamped(t *testing.T) {
	b := newBench(t)
	b.answer = none
	b.run(time.Hour)
	if b.probes > 20*25 {
		t.Errorf("%d probes in an hour without an answer", b.probes)
	}
	// A path that dies again and again.
	b = newBench(t)
	flaps := 0
	for start := b.now; b.now.Sub(start) < 10*time.Minute; {
		b.answer = all
		for b.track.state != up && b.now.Sub(start) < time.Hour {
			b.run(10 * time.Millisecond)
		}
		flaps++
		b.answer = none
		b.until(down, 5*time.Second)
	}
	if flaps > 12 {
		t.Errorf("taken %d times in ten minutes", flaps)
	}
	// One that lasted starts at the shortest pause again.
	b.answer = all
	b.until(up, 10*time.Minute)
	b.run(2 * lastedLong)
	b.answer = none
	b.until(down, 5*time.Second)
	b.answer = all
	if took := b.until(up, time.Minute); took > 2*time.Second {
		t.Errorf("up again after %v", took)
	}
}

func TestTrackHearsThePeerCall(t *testing.T) {
	b := newBench(t)
	b.answer = none
	b.run(5 * time.Minute)
	b.until(down, 10*time.Minute)
	b.answer, b.hears = all, true
	if took := b.until(up, time.Minute); took > 5*time.Second {
		t.Errorf("the peer's requests come in, and it took %v", took)
	}
}

func TestTrackOneWay(t *testing.T) {
	b := newBench(t)
	b.answer, b.hears = none, true
	b.until(down, 5*time.Second)
	if !strings.Contains(b.track.why, "one-way") {
		t.Errorf("why: %q", b.track.why)
	}
	if !b.track.accepts(b.now) {
		t.Error("the peer was heard, and its packets are not let in")
	}
	b.hears = false
	b.run(2 * acceptFor)
	if b.track.accepts(b.now) {
		t.Error("the peer's packets are let in forever")
	}
}

func TestTrackForgivesItsOwnDelay(t *testing.T) {
	b := newBench(t)
	b.until(up, time.Second)
	b.run(time.Second)
	for range 5 {
		b.now = b.now.Add(3 * time.Second) // the process did not run
		b.run(200 * time.Millisecond)
		if b.track.state == down {
			t.Fatal("down, because this process was held up")
		}
	}
	// Also when it happens just before the path would be given up.
	b.answer = none
	b.until(failing, time.Second)
	for b.track.unanswered < lostLimit {
		b.run(time.Millisecond)
	}
	b.answer = all
	b.now = b.now.Add(3 * time.Second)
	b.run(200 * time.Millisecond)
	b.want(up)
}

// A slow path is no lost one: the next probes go before the answer is there.
func TestTrackIsSlow(t *testing.T) {
	b := newBench(t)
	b.delay = 500 * time.Millisecond
	b.until(up, 5*time.Second)
	for range 600 { // probes are rare in the end, and none is under way when one is sent
		b.run(100 * time.Millisecond)
		if b.track.state == down {
			t.Fatalf("down, with answers after %v: %s", b.delay, b.track.why)
		}
	}
}

func TestTrackIgnoresWrongAnswers(t *testing.T) {
	b := newBench(t)
	for _, seq := range []uint64{0, 1, 5, 1 << 63} {
		b.track.answer(b.now, seq)
	}
	p, _ := b.track.tick(b.now)
	for range 10 {
		b.track.answer(b.now, p.seq) // the same one counts once
	}
	b.want(proving)
	b = newBench(t)
	b.track.sendFailed(errors.New("network is unreachable"))
	b.answer = none
	b.until(down, 5*time.Second)
	if b.track.why != "network is unreachable" {
		t.Errorf("why: %q", b.track.why)
	}
	if b.track.answer(b.now, b.track.sent) {
		t.Error("a late answer brings a path back")
	}
}
