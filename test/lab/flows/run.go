package flows

import (
	"encoding/binary"
	"slices"
	"time"

	"edgemesh/test/lab/link"
)

const (
	tick     = 250 * time.Microsecond
	ackBytes = 90
)

// Result is what became of a run.
type Result struct {
	Queue    []float64 // sorted, one of each 10 ms: the queue in seconds of the line's rate at that time
	Capacity float64   // what the line could have carried from mark on, bit/s
}

// P returns a quantile of the queue.
func (r Result) P(share float64) float64 { return r.Queue[int(share*float64(len(r.Queue)-1))] }

// Run lets all send on the line for so many seconds; the result is of the time from mark on. Equal seeds give equal runs. Trace, if
// there is one, is called every 25 ms.
func Run(line Line, seed uint64, seconds, mark float64, trace func(now, queue float64), senders ...*Sender) (r Result) {
	l := newState(line, seed)
	up := line.Up
	if up.Rate == 0 {
		up = link.Direction{Delay: line.Delay}
	}
	back := link.NewQueue(up, ^seed, packetBytes)
	var reports []report // all acknowledgements so far
	for _, s := range senders {
		s.newest, s.highest = -1, -1
	}
	ticks, second := int64(0), int64(time.Second/tick)
	for now := time.Duration(0); now.Seconds() < seconds; now += tick {
		t := now.Seconds()
		l.vary(now)
		if t >= mark {
			r.Capacity += float64(l.rate) * tick.Seconds() / (seconds - mark)
		}
		for i, s := range senders {
			if t < s.From || s.To > 0 && t > s.To {
				continue
			}
			s.send(t, tick.Seconds(), func(number uint64) {
				b := l.queue.Buffer()[:packetBytes]
				b[8] = byte(i)
				binary.BigEndian.PutUint64(b, number)
				l.queue.Push(now, b)
			})
		}
		for line.Bunch == 0 || now%line.Bunch == 0 {
			f, at := l.queue.Pop(now)
			if f == nil {
				break
			}
			if !l.burst() {
				senders[f[8]].receive(int(binary.BigEndian.Uint64(f)), seen(line, now, at))
			}
			l.queue.Free(f)
		}
		for _, s := range senders {
			if a, due := s.acknowledge(t); due {
				b := back.Buffer()[:ackBytes]
				binary.BigEndian.PutUint64(b, uint64(len(reports)))
				back.Push(now, b)
				reports = append(reports, a)
			}
		}
		for {
			f, _ := back.Pop(now)
			if f == nil {
				break
			}
			a := reports[binary.BigEndian.Uint64(f)]
			back.Free(f)
			a.sender.acked(t, a)
		}
		queue := float64(l.queue.Counters().Queued) * 8 / float64(max(l.rate, 1000))
		if ticks++; ticks%40 == 0 && t > mark {
			r.Queue = append(r.Queue, queue)
		}
		for _, s := range senders {
			s.timeout(t)
			if ticks%second == 0 {
				s.Rates = append(s.Rates, s.second*8)
				s.second = 0
			}
		}
		if trace != nil && ticks%100 == 0 {
			trace(t, queue)
		}
	}
	slices.Sort(r.Queue)
	return r
}

// seen is when a packet is seen that came out of the line.
func seen(l Line, now, at time.Duration) float64 {
	if l.Bunch > 0 {
		at = now
	}
	return at.Seconds()
}
