package control_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"edgemesh/test/lab/flows"
	"edgemesh/test/lab/link"
	"edgemesh/tunnel/p2p/carrier/control"
)

var (
	matrix = flag.String("matrix", "", "run and print the cells that match, with eight starts each; their means are judged, too")
	trace  = flag.Bool("trace", false, "with -matrix: print what each tunnel does every half second")
)

// mix is who shares a line. The last comes so much later.
type mix struct {
	name string
	make func(later float64) []*flows.Sender
	least, most,
	worst float64 // share of the tunnels together: mean over starts, and in each
	queue float64 // standing, seconds
}

func mixes(rate float64, queue int) []mix {
	own := func(from float64) *flows.Sender { return flows.Own(from) }
	deep := queue == 500
	cubic := 0.3
	if deep {
		cubic = 0.15
	}
	packets := 3 * 1514 * 8 / rate // three packets' time, for each
	return []mix{
		{"own", func(l float64) []*flows.Sender { return []*flows.Sender{own(l)} }, .9, 1.1, .9, max(.020, packets)},
		{"own+own", func(l float64) []*flows.Sender { return []*flows.Sender{own(0), own(5 + l)} }, .9, 1.1, .9, max(.020, 2*packets)},
		{"own*4", func(l float64) []*flows.Sender { return []*flows.Sender{own(0), own(2 + l), own(4), own(6)} }, .9, 1.1, .9, max(.025, 4*packets)},
		{"bbr+own", func(l float64) []*flows.Sender { return []*flows.Sender{flows.BBR(0), own(5 + l)} }, .2, .65, .1, 1},
		{"own+bbr", func(l float64) []*flows.Sender { return []*flows.Sender{own(0), flows.BBR(5 + l)} }, .2, .65, .1, 1},
		{"cubic+own", func(l float64) []*flows.Sender { return []*flows.Sender{flows.Cubic(0), own(5 + l)} }, cubic, .65, cubic / 2, 1},
		{"own+cubic", func(l float64) []*flows.Sender { return []*flows.Sender{own(0), flows.Cubic(5 + l)} }, cubic, .65, cubic / 2, 1},
	}
}

// A tunnel alone and beside its own kind has the line, evenly and with a short queue; beside one flow of BBR or cubic it has its
// share. A minute each, one start (-matrix REGEX: eight).
func TestShares(t *testing.T) {
	starts := 1
	match := regexp.MustCompile(*matrix)
	if *matrix != "" {
		starts = 8
	}
	for _, rate := range []float64{10e6, 30e6} {
		for _, rtt := range []int{20, 50, 150} {
			for _, queue := range []int{50, 500} {
				line := flows.Line{Direction: link.Direction{Rate: int64(rate), QueueTime: time.Duration(queue) * time.Millisecond, Delay: time.Duration(rtt) * time.Millisecond / 2}}
				for _, m := range mixes(rate, queue) {
					name := fmt.Sprintf("%s/%.0f/%d/%d", m.name, rate/1e6, rtt, queue)
					if match.MatchString(name) {
						cell(t, name, line, m, starts)
					}
				}
			}
		}
	}
}

func cell(t *testing.T, name string, line flows.Line, m mix, starts int) {
	var mean, p50, p99, uneven float64
	worst := math.Inf(1)
	for i := range starts {
		senders := m.make(float64(i) * 0.137)
		mark := senders[len(senders)-1].From + 5
		r := flows.Run(line, 7, 60, mark, tracer(senders), senders...)
		share, low, high := 0.0, math.Inf(1), 0.0
		for _, s := range senders {
			if s.Name == "own" {
				x := s.Mean(int(mark)) / float64(line.Rate)
				share, low, high = share+x, min(low, x), max(high, x)
			}
		}
		n := float64(starts)
		mean, worst, uneven = mean+share/n, min(worst, share), max(uneven, high/low)
		p50, p99 = p50+r.P(.5)/n, p99+r.P(.99)/n
	}
	if *matrix != "" {
		fmt.Printf("%-18s %.2f, worst %.2f, uneven %.1f, queue p50 %3.0f p99 %3.0f ms\n", name, mean, worst, uneven, 1000*p50, 1000*p99)
	}
	if worst < m.worst || mean > m.most || uneven > 2 || p50 > m.queue {
		t.Errorf("%s: %.2f of the line, worst %.2f, uneven %.1f, queue %.0f ms; wanted %.2f to %.2f, worst %.2f, 2, %.0f ms", name, mean, worst, uneven,
			1000*p50, m.least, m.most, m.worst, 1000*m.queue)
	}
	if starts > 1 && mean < m.least {
		t.Errorf("%s: %.2f of the line, wanted %.2f", name, mean, m.least)
	}
}

func tracer(senders []*flows.Sender) func(now, queue float64) {
	if !*trace {
		return nil
	}
	n := 0
	return func(now, queue float64) {
		if n++; n%20 != 0 {
			return
		}
		fmt.Printf("%6.2f queue %5.1f", now, 1000*queue)
		for _, s := range senders {
			if c, ok := s.Controller().(*control.Control); ok {
				fmt.Printf(" | %-5v %6.2f Mbit/s, queue %5.1f", c.State(), 8e-6*c.Rate(0), 1000*c.Queue())
			}
		}
		fmt.Println()
	}
}

// Lines that the rules were not made for. Share is of what the line could carry less what it loses.
func TestLinks(t *testing.T) {
	base := link.Direction{Rate: 30e6, QueueTime: 500 * time.Millisecond, Delay: 25 * time.Millisecond}
	with := func(change func(*flows.Line)) flows.Line {
		l := flows.Line{Direction: base}
		change(&l)
		return l
	}
	wave := func(speed float64) func(time.Duration) float64 {
		return func(now time.Duration) float64 { return .6 + .4*math.Sin(speed*now.Seconds()) }
	}
	for _, c := range []struct {
		name       string
		line       flows.Line
		share, p50 float64 // seconds; 0: not judged
	}{
		{"nothing", with(func(l *flows.Line) {}), .95, .010},
		{"1 Mbit/s", with(func(l *flows.Line) { l.Rate = 1e6 }), .9, .050},
		{"200 Mbit/s", with(func(l *flows.Line) { l.Rate = 200e6 }), .9, .010},
		{"round trip 600 ms", with(func(l *flows.Line) { l.Delay = 300 * time.Millisecond }), .75, .010},
		{"3 % lost", with(func(l *flows.Line) { l.Loss = .03 }), .9, .010},
		{"1 % lost in runs of 8", with(func(l *flows.Line) { l.BurstLoss, l.BurstLength = .00125, 8 }), .9, .010},
		{"2 % reordered", with(func(l *flows.Line) { l.Reorder = .02 }), .9, .010},
		{"jitter 5 ms", with(func(l *flows.Line) { l.Jitter = 5 * time.Millisecond }), .9, .010},
		{"bunches of 20 ms", with(func(l *flows.Line) { l.Bunch = 20 * time.Millisecond }), .9, .015},
		{"stalls of 200 ms each second", with(func(l *flows.Line) { l.Every, l.Stall = time.Second, 200*time.Millisecond }), .8, 0},
		{"a stall of 5 s", with(func(l *flows.Line) { l.Every, l.Stall = 20*time.Second, 5*time.Second }), .8, 0},
		{"a tenth for 10 s", with(func(l *flows.Line) {
			l.Vary = func(now time.Duration) float64 {
				if now > 10*time.Second && now < 20*time.Second {
					return .1
				}
				return 1
			}
		}), .9, .015},
		{"a slow wave", with(func(l *flows.Line) { l.Vary = wave(1) }), .9, .015},
		{"a fast wave", with(func(l *flows.Line) { l.Vary = wave(6) }), .6, .030},
		{"longer by 60 ms from 8 s on", with(func(l *flows.Line) {
			l.Longer = func(now time.Duration) time.Duration {
				if now < 8*time.Second {
					return 0
				}
				return 60 * time.Millisecond
			}
		}), .8, .020},
		{"a policer", with(func(l *flows.Line) { l.QueueTime, l.Queue, l.Burst = 0, 3000, 64000 }), .6, .010},
	} {
		s := flows.Greedy(0)
		r := flows.Run(c.line, 7, 30, 0, nil, s)
		share := s.Mean(0) / r.Capacity / (1 - c.line.Loss)
		t.Logf("%s: %.2f, queue p50 %.0f p99 %.0f ms", c.name, share, 1000*r.P(.5), 1000*r.P(.99))
		if share < c.share || c.p50 > 0 && r.P(.5) > c.p50 {
			t.Errorf("%s: %.2f of the line, queue %.0f ms; wanted %.2f, %.0f ms", c.name, share, 1000*r.P(.5), c.share, 1000*c.p50)
		}
	}
}

// An application with less to send gets that, and the line once it wants it.
func TestLessToSend(t *testing.T) {
	app := flows.App(0, func(now float64) float64 {
		if now < 10 {
			return 0.5e6 // bytes
		}
		return 1e8
	})
	flows.Run(flows.Line{Direction: link.Direction{Rate: 30e6, QueueTime: 50 * time.Millisecond, Delay: 25 * time.Millisecond}}, 7, 20, 0, nil, app)
	if got := app.Rates[8]; math.Abs(got-4e6) > 0.1e6 {
		t.Errorf("%.0f bit/s of 4e6 that were to be sent", got)
	}
	if got := app.Rates[12]; got < 27e6 {
		t.Errorf("%.0f bit/s two seconds after there was more to send", got)
	}
}

// leap is a Control whose peer sets its clock.
type leap struct {
	*control.Control
	at, by float64
}

func (l *leap) Acked(a control.Ack) {
	if a.Now > l.at {
		a.Arrived += l.by
	}
	l.Control.Acked(a)
}

func TestPeersClockIsSet(t *testing.T) {
	for _, by := range []float64{-300, 300, 0.2} {
		s := flows.With("leap", 0, &leap{control.New(), 5, by})
		flows.Run(flows.Line{Direction: link.Direction{Rate: 30e6, QueueTime: 50 * time.Millisecond, Delay: 25 * time.Millisecond}}, 7, 15, 0, nil, s)
		if got := s.Mean(8); got < 25e6 {
			t.Errorf("%.0f bit/s of 30e6 after the peer's clock went by %v s", got, by)
		}
	}
}

// Whatever a peer says, rate and window stay finite and positive, and a second of nothing but nonsense is no reason to send faster
// than 100 Gbit/s.
func TestAbsurdAcks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	values := []float64{0, 1, -1, 1e-9, 1514, 1e6, 1e15, -1e15, 1e300, math.MaxFloat64, -math.MaxFloat64, math.Inf(1), math.Inf(-1), math.NaN()}
	any := func(usual float64) float64 {
		if rng.IntN(8) > 0 {
			return usual
		}
		return values[rng.IntN(len(values))]
	}
	for range 200 {
		c := control.New()
		for i := range 500 {
			t0 := float64(i) * 0.005
			c.Acked(control.Ack{Now: t0, Sent: t0 - 0.05, Arrived: any(t0 - 0.025 + 0.02*rng.Float64()), Got: any(t0 * 1e6), Number: uint64(i), Next: uint64(i + 20),
				RTT: any(0.05), Waited: true, Acked: any(5000), Lost: any(0), InFlight: 50000})
			rate, window := c.Rate(50000), c.Window()
			if !(rate > 0 && rate <= 3*12.5e9) || !(window > 0 && window < math.Inf(1)) {
				t.Fatalf("rate %v, window %v", rate, window)
			}
		}
	}
}

// A small packet takes less time on a thin line than a full one; that is no queue.
func TestSmallPackets(t *testing.T) {
	const rate = 2e6 / 8.0 // bytes a second; about what a new one begins with
	c, got := control.New(), 0.0
	for i := range 200 {
		size := 1514.0
		if i%20 == 19 {
			size = 100
		}
		now, alone := 1+float64(i)*0.02, size/rate
		got += size
		c.Acked(control.Ack{Now: now, Sent: now - 0.05 - alone, Arrived: now - 0.025, Got: got, Size: size, Number: uint64(i), Next: uint64(i + 3),
			RTT: 0.05 + alone, Acked: size, InFlight: 3 * size})
		if q := c.Queue(); i > 40 && q > 0.001 {
			t.Fatalf("packet %d of %.0f bytes: a queue of %.1f ms", i, size, 1000*q)
		}
	}
	if rtt := c.MinRTT(); math.Abs(rtt-0.05-1514/rate) > 0.001 {
		t.Errorf("the shortest round trip is %.1f ms", 1000*rtt)
	}
}

// Until a queue has shown what a path carries its rate also grows where data run out now and then, by what was sent and has arrived: not by
// bunches that a stall makes of less.
func TestStartOfLess(t *testing.T) {
	const bunch = 80 // packets of 1200 bytes, sent in 200 ms
	for _, stalls := range []bool{false, true} {
		c, got := control.New(), 0.0
		for i := range 50 * bunch {
			began, n := float64(i/bunch)*0.2, float64(i%bunch)
			sent := began + n*0.00024 // at 40 Mbit/s, then nothing
			arrived, told := sent, i%5 == 4
			if stalls { // at 4 Mbit/s, and arrive within 10 ms at the end
				sent, arrived, told = began+n*0.0025, began+0.2+n*0.00012, n == 0 || n == bunch-1
			}
			if got += 1200; told {
				c.Acked(control.Ack{Now: arrived + 0.05, Sent: sent, Arrived: arrived + 0.025, Got: got, Size: 1200, Number: uint64(i), Next: uint64(i + 1),
					RTT: arrived + 0.05 - sent})
			}
		}
		if rate := c.Rate(0) * 8e-6; stalls && rate > 2.2*4 || !stalls && (rate < 40 || rate > 2.2*40) {
			t.Errorf("stalls %v: the rate is %.1f Mbit/s", stalls, rate)
		}
	}
}

// Where a round trip takes .5 ms, the rate has doubled often enough for 500 Mbit/s before a queue of packets at that rate overflows. Until then
// no more is in flight than a slow start has.
func TestNearStart(t *testing.T) {
	const rtt = 0.0005
	c, got, now, next := control.New(), 0.0, 1.0, uint64(0)
	for bytes := 1514.0; c.Rate(0) < 500e6/8; now += rtt { // the first packet is alone
		got += bytes
		next += uint64(bytes / 1514)
		c.Acked(control.Ack{Now: now + rtt, Sent: now, Arrived: now + rtt/2, Got: got, Size: 1514, Number: next - 1, Next: next, RTT: rtt, Waited: true, Acked: bytes})
		bytes = max(1514, min(c.Rate(0)*rtt, c.Window()))
		if most := got + 16*1514; bytes > most {
			t.Fatalf("%.0f bytes leave in a round trip after %.0f have arrived", bytes, got)
		}
		if now > 1.025 {
			t.Fatalf("after %.1f ms the rate is %.0f Mbit/s", 1000*(now-1), c.Rate(0)*8e-6)
		}
	}
}

// The rate of a path that takes all there is grows, until less is sent. What the path carries shows in a queue.
func TestGrows(t *testing.T) {
	c, got, now := control.New(), 0.0, 1.0
	queue := 0.0
	acks := func(waited bool, share float64, n int) {
		for range n {
			now += 0.005
			bytes := share * c.Rate(0) * 0.005
			got += bytes
			c.Acked(control.Ack{Now: now, Sent: now - 0.05 - queue, Arrived: now - 0.025, Got: got, Size: 1514, Number: uint64(now * 200), Next: uint64(now*200) + 10,
				RTT: 0.05 + queue, Waited: waited, Acked: bytes})
		}
	}
	if acks(true, 1, 100); !c.Grows() || c.Rate(0) < 1e6 {
		t.Errorf("it does not grow at %.0f bytes a second", c.Rate(0))
	}
	if acks(false, 0.5, 100); c.Grows() || c.Full() {
		t.Error("it grows without anything that waits, or is full without a queue")
	}
	queue = 0.02
	if acks(true, 1, 20); !c.Full() {
		t.Error("a queue of 20 ms, and it is not full")
	}
}
