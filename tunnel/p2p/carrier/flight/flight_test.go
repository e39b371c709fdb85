package flight

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"edgemesh/test/lab/link"
	"edgemesh/tunnel/pull"
)

// Whatever is lost, doubled, late: each bucket gets every byte once and in order, and nothing is held afterwards. Where half of the
// packets are lost a bucket may begin again; the sink then checks that no frame comes twice, or in parts.
func TestEveryByteOnceInOrder(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		share := func(name string, most float64) float64 { return rapid.Float64Range(0, most).Draw(r, name) }
		d := link.Direction{
			Rate:  rapid.SampledFrom([]int64{1e6, 10e6, 100e6}).Draw(r, "rate"),
			Delay: time.Duration(rapid.IntRange(0, 150).Draw(r, "delay")) * time.Millisecond, QueueTime: time.Duration(rapid.IntRange(20, 500).Draw(r, "queue")) * time.Millisecond,
			Jitter: time.Duration(rapid.IntRange(0, 20).Draw(r, "jitter")) * time.Millisecond, Reorder: share("reorder", .3),
			ReorderBy: time.Duration(rapid.IntRange(1, 60).Draw(r, "by")) * time.Millisecond, Loss: share("loss", .3), Duplicate: share("double", .3),
		}
		back := d
		back.Loss = share("lossBack", .3)
		l := newLab(r, d, back, rapid.Uint64().Draw(r, "seed"))
		for _, e := range l.e {
			for range rapid.IntRange(1, 20).Draw(r, "buckets") {
				e.source.add(rapid.IntRange(0, pull.Buckets-1).Draw(r, "bucket"), rapid.IntRange(1, 20).Draw(r, "frames"))
			}
			e.room = rapid.IntRange(300, testRoom).Draw(r, "room")
		}
		l.run(120, l.finished)
		l.consistent()
		if n := l.e[0].peer.Counters().Restarts + l.e[1].peer.Counters().Restarts; n == 0 {
			l.whole()
		} else if max(d.Loss, back.Loss) < .1 && d.QueueTime > 100*time.Millisecond {
			r.Errorf("%d buckets began again", n)
		}
	})
}

// Throughput is close to the line's, whatever is lost.
func TestThroughput(t *testing.T) {
	for _, c := range []struct {
		mbit  float64
		ms    int
		loss  float64
		flows int
		share float64
	}{
		{30, 25, 0, 1, .9}, {30, 25, .01, 1, .9}, {30, 25, .03, 1, .85}, {100, 25, .01, 8, .85}, {10, 300, .03, 8, .7}, {2, 40, 0, 1, .85}, {1, 25, .03, 4, .8},
	} {
		l := newLab(t, direction(c.mbit, c.ms, c.loss), direction(c.mbit, c.ms, c.loss), 3)
		s := l.e[0].source
		s.endless = c.flows
		for i := range c.flows {
			s.add(i, 1)
		}
		l.e[1].sink.cheap = true
		l.run(5, nil)
		before := l.e[1].sink.bytes
		l.run(15, nil)
		got := float64(l.e[1].sink.bytes-before) * 8 / 10 / 1e6
		t.Logf("%v Mbit/s, %d ms, %.0f %% lost, %d flows: %.2f Mbit/s, %.2f of what the line could; %+v", c.mbit, c.ms, 100*c.loss, c.flows, got, got/c.mbit/(1-c.loss),
			l.e[0].peer.Counters())
		if got < c.share*c.mbit*(1-c.loss) {
			t.Errorf("%v Mbit/s, %d ms, %.0f %% lost: %.2f Mbit/s", c.mbit, c.ms, 100*c.loss, got)
		}
	}
}
