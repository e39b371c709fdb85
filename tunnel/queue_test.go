package tunnel

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/tunnel/pull"
)

const ms = int64(time.Millisecond)

func pkt(flow uint32, n int) *packet {
	size := smallLen
	if n > smallLen {
		size = fullLen
	}
	return &packet{buf: make([]byte, size), n: n, flow: flow}
}

// TestQueueFair: three flows of different packet sizes get the same bytes, each in order.
func TestQueueFair(t *testing.T) {
	q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 1, Interval: ms}}
	var late chain
	sizes := map[uint32]int{1: 60000, 2: 1500, 3: 100}
	for flow, n := range sizes {
		for i := range 4_000_000 / n {
			p := pkt(flow, n)
			p.at = int64(i)
			q.push(p)
		}
	}
	got := map[uint32]int{}
	last := map[uint32]int64{1: -1, 2: -1, 3: -1}
	for sum := 0; sum < 6_000_000; {
		p := q.pop(0, &late)
		if p.at != last[p.flow]+1 {
			t.Fatalf("flow %d: %d follows %d", p.flow, p.at, last[p.flow])
		}
		last[p.flow] = p.at
		got[p.flow] += p.n
		sum += p.n
	}
	for flow, n := range got {
		if n < 1_900_000 || n > 2_100_000 {
			t.Errorf("flow %d got %d of 6 MB", flow, n)
		}
	}
}

// TestQueueOldest: the oldest of all flows, whatever their order.
func TestQueueOldest(t *testing.T) {
	q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 1, Interval: ms}}
	if at, ok := q.oldest(); ok {
		t.Errorf("an empty queue has a packet of %d", at)
	}
	for flow, at := range []int64{7, 3, 9} {
		p := pkt(uint32(flow), 100)
		p.at = at
		q.push(p)
	}
	if at, ok := q.oldest(); !ok || at != 3 {
		t.Errorf("the oldest is of %d, %t", at, ok)
	}
}

// TestQueueSparseFirst: a packet of a flow that was silent goes before a standing one.
func TestQueueSparseFirst(t *testing.T) {
	q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 1, Interval: ms}}
	var late chain
	for range 40 {
		q.push(pkt(1, 60000))
	}
	q.pop(0, &late) // the bulk flow used its first turn up
	for range 10 {
		q.push(pkt(2, 100))
		if p := q.pop(0, &late); p.flow != 2 {
			t.Fatalf("flow %d comes first", p.flow)
		}
		if p := q.pop(0, &late); p.flow != 1 { // and the bulk flow is not starved
			t.Fatalf("flow %d comes second", p.flow)
		}
	}
}

// While the path's rate is being learnt no flow is to slow down, and what it waited then does not count later.
func TestQueueSparesWhileItLearns(t *testing.T) {
	q := queue{held: new(atomic.Int64), target: codelTarget{Delay: ms, Interval: 10 * ms}, learns: true}
	var late chain
	lost := func(from, to int64) (n int) {
		for now := from; now < to; now += ms {
			p := pkt(1, 3000)
			p.at = now - 100*ms
			q.push(p)
			q.push(pkt(1, 3000))
			if p := q.pop(now, &late); p == nil {
				t.Fatal("nothing is left")
			}
		}
		late.each(func(*packet) { n++ })
		return n
	}
	if n := lost(0, 100*ms); n != 0 {
		t.Errorf("%d packets are dropped", n)
	}
	q.learns = false
	if n := lost(100*ms, 109*ms); n != 0 {
		t.Errorf("%d packets are dropped within an interval", n)
	}
	if n := lost(109*ms, 200*ms); n == 0 {
		t.Error("no packet is dropped afterwards")
	}
}

func TestQueueDropsOldestOfFattest(t *testing.T) {
	q := queue{held: new(atomic.Int64)}
	for i := range int64(3) {
		for flow := range uint32(3) {
			p := pkt(flow, 1000)
			p.at = 10*int64(flow) + i
			q.push(p)
		}
	}
	fat := pkt(1, 1000)
	fat.at = 99
	q.push(fat)
	if p := q.dropFattest(); p.flow != 1 || p.at != 10 {
		t.Errorf("dropped %d of flow %d", p.at, p.flow)
	}
	big := pkt(2, 5000) // memory counts, not length
	q.push(big)
	if p := q.dropFattest(); p.flow != 2 || p.at != 20 {
		t.Errorf("dropped %d of flow %d", p.at, p.flow)
	}
	if q.packets != 9 || q.charged != 8*smallLen+fullLen {
		t.Errorf("%d packets, %d bytes", q.packets, q.charged)
	}
}

func TestQueueExpires(t *testing.T) {
	q := queue{held: new(atomic.Int64)}
	var out, late chain
	for at := range int64(10) {
		for flow := range uint32(5) {
			p := pkt(flow, 100)
			p.at = at
			q.push(p)
		}
	}
	q.expire(4, &out)
	n := 0
	out.each(func(p *packet) {
		n++
		if p.at >= 4 {
			t.Errorf("expired %d", p.at)
		}
	})
	if n != 20 || q.packets != 30 {
		t.Errorf("%d expired, %d left", n, q.packets)
	}
	for q.packets > 0 {
		if p := q.pop(0, &late); p == nil || p.at < 4 {
			t.Fatalf("left: %+v", p)
		}
	}
	if q.pop(0, &late) != nil || q.charged != 0 || q.held.Load() != 0 {
		t.Errorf("%d, %d bytes in an empty queue", q.charged, q.held.Load())
	}
	q.expire(1<<62, &out)
	q.push(pkt(1, 100)) // usable again
	if q.pop(0, &late) == nil {
		t.Error("nothing")
	}
}

// TestDelayIsBounded: a flow that keeps a standing queue of 100 ms loses a packet
// now and then, one whose delay is short, or stood for a moment only, none.
func TestDelayIsBounded(t *testing.T) {
	run := func(delay func(now int64) int64) (drops int) {
		q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 30 * ms, Interval: 150 * ms}}
		for now := int64(0); now < 2000*ms; now += 5 * ms {
			var late chain
			for range 2 {
				p := pkt(1, 2000)
				p.at = now - delay(now)
				q.push(p)
			}
			q.pop(now, &late)
			late.each(func(*packet) { drops++ })
			if q.packets > 1 { // the rest of the backlog is not the subject here
				q.expire(1<<62, &late)
			}
		}
		return drops
	}
	if n := run(func(int64) int64 { return 10 * ms }); n != 0 {
		t.Errorf("short delay: %d drops", n)
	}
	if n := run(func(now int64) int64 {
		if now%(500*ms) < 100*ms {
			return 100 * ms
		}
		return 0
	}); n != 0 {
		t.Errorf("short spells: %d drops", n)
	}
	if n := run(func(int64) int64 { return 100 * ms }); n < 10 || n > 100 {
		t.Errorf("standing queue: %d drops", n)
	}
}

// TestSlowPathServesSparse: a path takes 125 bytes in 1 ms, a flow sends 64 bytes every 20 ms beside one that always has
// packets of 1500 bytes. The small ones wait for two of the long ones at most, and none is dropped, although the delay is
// above the target for longer than the interval.
func TestSlowPathServesSparse(t *testing.T) {
	const rate, every = 125, 20 * ms // bytes per ms
	q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 5 * ms, Interval: 10 * ms}, pieces: pieces{piece: 1024}}
	var late chain
	add := func(flow uint32, n int, at int64) {
		p := pkt(flow, n)
		p.at = at
		q.push(p)
	}
	sent, got, bulk, longest := 0, 0, 0, int64(0)
	for now := int64(0); now < 5000*ms; {
		for ; int64(sent)*every <= now; sent++ {
			add(2, 64, int64(sent)*every)
		}
		for bulk < 20 {
			add(1, 1500, now)
			bulk++
		}
		p := q.pop(now, &late)
		late.each(func(p *packet) {
			if p.flow == 2 {
				t.Errorf("a small packet was dropped after %d ms", now/ms)
			}
			bulk--
		})
		if p.flow == 1 {
			bulk--
		} else if p.at != int64(got)*every {
			t.Fatalf("the small packet of %d ms follows %d others", p.at/ms, got)
		} else {
			got++
			longest = max(longest, now-p.at)
		}
		now += int64(p.n) * ms / rate
	}
	if most := 2 * (1500 + minQuantum) * ms / rate; longest > most || got < sent-3 {
		t.Errorf("a small packet waited for %d ms, want %d at most; %d of %d came", longest/ms, most/ms, got, sent)
	}
}

// TestQueueIsBoundedByTime: a path takes one packet in 10 ms, and a flow sends ten, whatever is dropped. No packet is
// delivered that waited longer than the bound.
func TestQueueIsBoundedByTime(t *testing.T) {
	q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 30 * ms, Interval: 150 * ms}, longest: 1000 * ms}
	var late chain
	dropped, oldest := 0, int64(0)
	for now := int64(0); now < 20000*ms; now += ms {
		p := pkt(1, 1200)
		p.at = now
		q.push(p)
		if now%(10*ms) == 0 {
			oldest = max(oldest, now-q.pop(now, &late).at)
		}
		late.each(func(*packet) { dropped++ })
	}
	if oldest > q.longest || oldest < q.longest/2 {
		t.Errorf("the oldest that was delivered had waited for %d ms", oldest/ms)
	}
	if q.packets > 1010 || dropped == 0 {
		t.Errorf("%d packets wait, %d were dropped", q.packets, dropped)
	}
}

// far is a carrier on a path of some length.
type far struct {
	Carrier
	rtt time.Duration
}

func (f *far) RTT() time.Duration { return f.rtt }

// A flow's delay, and how long it may stand, are bounded by the length of the path.
func TestDelayFollowsThePath(t *testing.T) {
	for rtt, want := range map[time.Duration][2]time.Duration{
		0:                      {100 * time.Millisecond, 150 * time.Millisecond},
		time.Millisecond:       {5 * time.Millisecond, 150 * time.Millisecond},
		20 * time.Millisecond:  {12 * time.Millisecond, 150 * time.Millisecond},
		150 * time.Millisecond: {90 * time.Millisecond, 300 * time.Millisecond},
		600 * time.Millisecond: {100 * time.Millisecond, time.Second},
		5 * time.Second:        {100 * time.Millisecond, time.Second},
	} {
		l := lane{id: DatagramLane, p: &peer{t: &Tunnel{lim: Limits{}.withDefaults()}}}
		l.adapt(&link{c: &far{rtt: rtt}}, 1)
		if got := [2]time.Duration{time.Duration(l.q.target.Delay), time.Duration(l.q.target.Interval)}; got != want {
			t.Errorf("%v: target and interval %v, want %v", rtt, got, want)
		}
	}
}

// TestQueueResent: a TCP segment that is sent again keeps its place, waits twice as long as others, and CoDel leaves it alone.
// Those of another flow in the same place of the table, those of another connection, and new ones, it does not.
func TestQueueResent(t *testing.T) {
	for _, c := range []struct {
		name    string
		flow    uint32
		seq     int32 // from that of the newest
		data    int
		at      int64
		dropped bool
	}{
		{"again", 1, -1400, 1400, 900 * ms, false}, {"the newest again", 1, 0, 1400, 900 * ms, false},
		{"the end of the newest again", 1, 1000, 400, 900 * ms, false}, {"again, for long", 1, -1400, 1400, 1100 * ms, true}, {"new", 1, 1400, 1400, 900 * ms, true},
		{"of another flow", 1 + pull.Buckets, -1400, 1400, 900 * ms, true}, {"of another connection", 1, -1 << 30, 1400, 900 * ms, true},
		{"without data", 1, -1400, 0, 900 * ms, true},
	} {
		for longest, at := range map[int64]int64{500 * ms: c.at, 0: min(c.at, 900*ms)} { // without the bound CoDel acts
			q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 10 * ms, Interval: 50 * ms}, longest: longest}
			var late chain
			newest := ^uint32(700) // sequence numbers wrap
			push := func(flow, seq uint32, data int) {
				p := pkt(flow, 1500)
				p.seq, p.data = seq, data
				q.push(p)
			}
			push(1, newest, 1400)
			push(c.flow, newest+uint32(c.seq), c.data)
			for range 4 {
				push(1, 1, 0)
			}
			if p := q.pop(400*ms, &late); p == nil || p.seq != newest {
				t.Fatalf("%s: another one is first", c.name)
			}
			p := q.pop(at, &late)
			dropped := p == nil || p.seq != newest+uint32(c.seq)
			if want := c.dropped && (longest > 0 || c.at < 1000*ms); dropped != want {
				t.Errorf("%s, longest %d ms: dropped: %t", c.name, longest/ms, dropped)
			}
		}
	}
}

// TestQueueKeepsSmallFlows: where nothing leaves for a while, a TCP flow that sends little keeps what it has sent, for twice
// as long as others.
func TestQueueKeepsSmallFlows(t *testing.T) {
	for name, c := range map[string]struct {
		packets, size, data int
		at                  int64
		kept                bool
	}{
		"messages":           {200, 120, 64, 5900 * ms, true},
		"messages, too long": {200, 120, 64, 6100 * ms, false},
		"a transfer":         {40, 1500, 1400, 3100 * ms, false},
		"datagrams":          {200, 120, 0, 3100 * ms, false},
	} {
		q := queue{held: new(atomic.Int64), target: codelTarget{Delay: 100 * ms, Interval: 150 * ms}, longest: 3000 * ms}
		var late chain
		for n := range c.packets {
			p := pkt(1, c.size)
			p.seq, p.data = uint32(n*c.data), c.data
			q.push(p)
		}
		if kept := q.pop(c.at, &late) != nil && late.head == nil; kept != c.kept {
			t.Errorf("%s: kept: %t", name, kept)
		}
	}
}

// TestLineIsAsOfTheLastPacket: acknowledgements of the first packets say too much of a round trip, and on a short path TCP carries more, so
// what is known of a path may not be old.
func TestLineIsAsOfTheLastPacket(t *testing.T) {
	tun := New(Config{Device: &joiner{}, Log: slog.New(slog.DiscardHandler)})
	tun.SetRoutes([]Route{{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Peer: "peer"}})
	l := tun.peer("peer").lanes[StreamLane]
	for _, trip := range []time.Duration{6 * time.Millisecond, 2 * time.Millisecond, 9 * time.Millisecond} {
		l.take(pull.Line{Least: trip.Seconds()})
		if _, line := l.seen(); line.Least != trip.Seconds() {
			t.Errorf("the path's least round trip is %v, known are %v s", trip, line.Least)
		}
	}
}
