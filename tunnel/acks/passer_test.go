package acks

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// passerRun gives a Passer packets.
type passerRun struct {
	t   *testing.T
	wg  sync.WaitGroup
	p   *Passer[numbered]
	now int64

	mu            sync.Mutex
	sent, dropped []int // packets that were held
}

// numbered is a packet that a Passer keeps.
type numbered struct {
	d *passerRun
	n int
}

func (a numbered) Send() {
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	a.d.sent = append(a.d.sent, a.n)
}
func (a numbered) Drop() { a.d.dropped = append(a.d.dropped, a.n) }

func newPasserRun(t *testing.T) *passerRun {
	d := &passerRun{t: t, now: int64(time.Minute)}
	d.p = NewPasser[numbered](&d.wg)
	return d
}

// left is what was held and has been sent by now.
func (d *passerRun) left() []int {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.sent)
}

// egress is how a packet leaves so many ms later, with this number if it is held.
func (d *passerRun) egress(ms, n int, b []byte, rtt time.Duration) Egress {
	d.t.Helper()
	d.now += int64(ms) * int64(time.Millisecond)
	ip := b[virtio.HeaderLen:]
	var h inet.Header
	if err := h.Parse(ip, 0); err != nil {
		d.t.Fatalf("test packet: %v", err)
	}
	return d.p.Egress(&h, ip, d.now, rtt, numbered{d, n})
}

func (d *passerRun) at(ms int, b []byte, rtt time.Duration) bool {
	d.t.Helper()
	return d.egress(ms, 0, b, rtt) != Along
}

// TestPasser: on a loaded long path, an ACK passes that follows another of its flow within a round trip.
func TestPasser(t *testing.T) {
	const long = 100 * time.Millisecond
	d := newPasserRun(t)
	want := func(step string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: passes %v, want %v", step, got, want)
		}
	}
	want("no load", d.at(0, ackOf(1), long) || d.at(1, ackOf(2), long), false)
	d.p.Waits(100, 0, d.now)
	want("no data waits", d.at(1, ackOf(2), long), false)
	want("no data waits for the next either", d.at(1, ackOf(2), long), false)
	d.p.Waits(1400, 0, d.now)
	want("the first", d.at(1, ackOf(3), long), false)
	want("the second", d.at(1, ackOf(4), long), true)
	want("a round trip later", d.at(100, ackOf(5), long), true)
	want("after silence", d.at(101, ackOf(6), long), false)
	want("and the next", d.at(1, ackOf(7), long), true)
	want("a short path", d.at(1, ackOf(8), time.Millisecond), false)
	want("an unknown path", d.at(1, ackOf(9), 0), false)
	want("data", d.at(1, segmentSent(1, 100), long), false)
	want("the end", d.at(1, received(segmentFields{ack: 10, flags: inet.ACK | inet.FIN}), long), false)
	want("another flow's first", d.at(1, tcpFrame(7, 8, segmentFields{ack: 1, flags: inet.ACK}), long), false)
	want("the flow before", d.at(1, ackOf(11), long), true)
	want("the load is over", d.at(1001, ackOf(12), long) || d.at(1, ackOf(13), long), false)
}

// A thin line carries one ACK of a flow in a while, the newest, and the last one in any case. One that does not say all that
// the one before said leaves behind that; one that says nothing new does not wait.
func TestPasserOnAThinLine(t *testing.T) {
	const long = 100 * time.Millisecond
	const gap = passShare*passBytes*1000/250_000 + 1  // ms, on a line of 2 Mbit/s
	sack := func(ack uint32, blocks ...byte) []byte { // each ends where the next number begins
		options := []byte{1, 1, 5, byte(2 + 8*len(blocks))}
		for _, b := range blocks {
			options = append(options, 0, 0, 0, b, 0, 0, 0, b+1)
		}
		return received(segmentFields{ack: ack, flags: inet.ACK, options: options})
	}
	synctest.Test(t, func(t *testing.T) {
		d := newPasserRun(t)
		want := func(step string, got, want Egress, sent, dropped []int) {
			t.Helper()
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			if got != want || !slices.Equal(d.sent, sent) || !slices.Equal(d.dropped, dropped) {
				t.Errorf("%s: egress %d, want %d; sent %v, want %v; dropped %v, want %v", step, got, want, d.sent, sent, d.dropped, dropped)
			}
			d.sent, d.dropped = nil, nil
		}
		d.p.Waits(1400, 250e3, d.now)
		want("the first", d.egress(1, 1, ackOf(1), long), Along, nil, nil)
		want("the second", d.egress(1, 2, ackOf(2), long), Past, nil, nil)
		want("soon after it", d.egress(1, 3, ackOf(3), long), Later, nil, nil)
		want("a newer one", d.egress(1, 4, ackOf(4), long), Later, nil, []int{3})
		time.Sleep(gap * time.Millisecond)
		synctest.Wait()
		want("nothing came", d.egress(gap, 5, ackOf(5), long), Later, []int{4}, nil)
		want("a loss", d.egress(1, 6, sack(5, 20), long), Later, nil, []int{5})
		want("more behind it", d.egress(1, 7, sack(5, 20, 21), long), Later, nil, []int{6})
		want("not all of that", d.egress(1, 8, sack(6, 20), long), Past, []int{7}, nil)
		want("the window", d.egress(0, 9, ackOf(6), long), Past, nil, nil)
		want("more", d.egress(1, 10, ackOf(7), long), Later, nil, nil)
		want("silence", d.egress(101, 11, ackOf(8), long), Along, []int{10}, nil)
		want("more again", d.egress(1, 12, ackOf(9), long), Past, nil, nil)
		want("and more", d.egress(1, 13, ackOf(10), long), Later, nil, nil)
		d.p.Waits(1400, 100e6, d.now)
		want("a fast line", d.egress(0, 14, ackOf(11), long), Past, nil, []int{13})
		time.Sleep(time.Hour)
		want("the end", d.egress(0, 15, ackOf(12), long), Past, nil, nil)
	})
}

// sharing are plain ACKs of flows, numbered from 0, that have the same set of places.
func sharing(t *testing.T) func(flow int, ack uint32) []byte {
	var ports []uint16
	set := uint32(0)
	for port := uint16(1); port != 0 && len(ports) < 2*passPlaces; port++ {
		var h inet.Header
		if err := h.Parse(tcpFrame(port, 80, segmentFields{flags: inet.ACK})[virtio.HeaderLen:], 0); err != nil {
			t.Fatal(err)
		}
		if s := h.Flow % (passFlows / passPlaces); len(ports) == 0 || s == set {
			set, ports = s, append(ports, port)
		}
	}
	return func(flow int, ack uint32) []byte {
		return tcpFrame(ports[flow], 80, segmentFields{ack: ack, flags: inet.ACK})
	}
}

// Flows that share a set of places do not disturb each other; those that find none free have all their ACKs pass. Together
// they have one share.
func TestPasserOfManyFlows(t *testing.T) {
	const long, gap = 100 * time.Millisecond, 8
	ack := sharing(t)
	synctest.Test(t, func(t *testing.T) {
		d := newPasserRun(t)
		d.p.Waits(1400, passShare*passBytes*1000/gap, d.now)
		for flow := range passPlaces {
			if w := d.egress(0, 0, ack(flow, 1), long); w != Along {
				t.Errorf("the first of flow %d: egress %d", flow, w)
			}
		}
		if w := d.egress(0, 0, ack(passPlaces, 1), long); w != Past {
			t.Errorf("without a place: egress %d", w)
		}
		for flow := range passPlaces {
			want := Later
			if flow == 0 {
				want = Past
			}
			if w := d.egress(0, flow, ack(flow, 2), long); w != want {
				t.Errorf("the second of flow %d: egress %d, want %d", flow, w, want)
			}
		}
		for n, want := range [][]int{{}, {1}, {1, 2}} {
			if left := d.left(); !slices.Equal(left, want) {
				t.Errorf("after %d ms %v were sent, want %v", n*gap, left, want)
			}
			time.Sleep(gap * time.Millisecond)
			d.now += int64(gap * time.Millisecond)
		}
		if left := d.left(); !slices.Equal(left, []int{1, 2, 3}) { // at most 20 ms late, of 24
			t.Errorf("sent %v", left)
		}
		d.now += int64(long)
		if w := d.egress(1, 0, ack(passPlaces, 2), long); w != Along {
			t.Errorf("a place that is free again: egress %d", w)
		}
	})
}

// However slow a line is, no ACK waits for longer than a quarter of a round trip; without a known rate none does. When its peer
// leaves it is dropped.
func TestPasserWaitsNoLonger(t *testing.T) {
	const short = 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		d := newPasserRun(t)
		d.p.Waits(1400, 1, d.now)
		d.at(0, ackOf(1), short)
		d.at(0, ackOf(2), short)
		for n := range 3 {
			if w := d.egress(0, n, ackOf(uint32(3+n)), short); w != Later {
				t.Errorf("egress %d", w)
			}
			time.Sleep(short / 4)
			d.now += int64(short / 4)
			if left := d.left(); len(left) != n+1 {
				t.Errorf("after a quarter of a round trip %v were sent", left)
			}
		}
		d.egress(0, 7, ackOf(7), short)
		d.p.Waits(1400, 0, d.now)
		if w := d.egress(0, 8, ackOf(8), short); w != Past || !slices.Equal(d.dropped, []int{7}) {
			t.Errorf("the rate is unknown: egress %d, dropped %v", w, d.dropped)
		}
		d.p.Waits(1400, 1, d.now)
		if w := d.egress(0, 9, ackOf(9), short); w != Later {
			t.Errorf("egress %d", w)
		}
		d.p.Close()
		time.Sleep(time.Second)
		if w := d.egress(0, 10, ackOf(10), short); w != Past || len(d.left()) != 3 || !slices.Equal(d.dropped, []int{7, 9}) {
			t.Errorf("after the end: egress %d, sent %v, dropped %v", w, d.left(), d.dropped)
		}
		d.wg.Wait()
	})
}
