package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"edgemesh/test/bench/report"
)

const (
	packetSize = 1200 // bytes of payload
	// The search is between these rates, packets per second, in steps that halve the
	// ratio of what is known to pass and what is known not to. Later rounds look
	// around what the earlier ones found.
	packetsLeast, packetsMost = 10_000, 320_000
	packetsAround             = 1.4
	packetsKnown              = 2 // steps that this spares
	// packetShort is the share of the wanted rate that has to be sent; less says that
	// the sender is at its end.
	packetShort = 0.97
	// slowControl is what iperf3's control connection may take beside a path's end of
	// what it can, on a busy machine.
	slowControl = 10 * time.Second
	// packetBuffer of the sockets, bytes, as far as the kernel grants it.
	packetBuffer = 4 << 20
)

// burst is what a steady stream of datagrams at one rate came to.
type burst struct {
	pps  float64 // sent
	lost float64 // share
	cpu  float64 // machine's CPU seconds per million packets
}

// passes says that nothing to speak of was lost.
func (b burst) passes(p plan) bool { return b.lost <= p.packetLoss }

// packets looks for the highest rate of datagrams without loss, turn by turn.
func (b *bench) packets(ctx context.Context, p *report.Part) error {
	return b.onStage(ctx, func(carriers []*carrier) error {
		for round := range b.plan.rounds {
			for _, c := range carriers {
				row := p.At(c.name, 0)
				if err := b.try(ctx, p, row, c.name, func(ctx context.Context, round *report.Row) (float64, error) {
					return 0, c.packetRound(ctx, b.plan, round)
				}); err != nil {
					return err
				}
				b.log.printf("round %d of %d  %-17s %6.1f thousand packets/s, %.1f CPU-s per million",
					round+1, b.plan.rounds, c.name, last(row, report.PacketRate), last(row, report.PacketCPU))
			}
		}
		return nil
	})
}

// packetRound measures one carrier once.
func (c *carrier) packetRound(ctx context.Context, p plan, row *report.Row) error {
	if err := resetPeaks(c.tunnel); err != nil {
		return err
	}
	best, err := c.packetRate(ctx, p)
	if err != nil {
		return err
	}
	row.Add(report.PacketRate, best.pps/1000)
	row.Add(report.PacketCPU, best.cpu)
	if len(c.tunnel) == 0 {
		return nil
	}
	peak, err := peakMB(c.tunnel)
	row.Add(report.PeakMB, peak)
	return err
}

// packetRate searches for the highest rate that passes. It is an error if not even
// the lowest does.
func (c *carrier) packetRate(ctx context.Context, p plan) (best burst, err error) {
	low, high, steps := float64(packetsLeast), float64(packetsMost), p.packetSteps
	if c.best > 0 {
		low, high, steps = c.best/packetsAround, c.best*packetsAround, max(1, steps-packetsKnown)
	}
	for range steps {
		want := math.Sqrt(low * high)
		b, err := c.burst(ctx, want, p.packetTime)
		if err != nil {
			return best, err
		}
		if b.passes(p) && b.pps > best.pps {
			best = b
		}
		if b.passes(p) && b.pps > packetShort*want {
			low = want
		} else {
			high = want
		}
	}
	for want := low; best.pps == 0 && want >= packetsLeast/10; want /= 2 {
		b, err := c.burst(ctx, want, p.packetTime)
		if err != nil {
			return best, err
		}
		if b.passes(p) {
			best = b
		}
	}
	if best.pps == 0 {
		return best, fmt.Errorf("not even %d datagrams per second pass", packetsLeast/10)
	}
	c.best = best.pps
	return best, nil
}

// burst sends datagrams at one rate.
func (c *carrier) burst(ctx context.Context, pps float64, d time.Duration) (b burst, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+setUpTime)
	defer cancel()
	size, err := socketBuffer()
	if err != nil {
		return b, err
	}
	before, err := machineCPU()
	if err != nil {
		return b, err
	}
	s, err := c.datagrams(ctx, packetSize, strconv.Itoa(int(pps*packetSize*8)), size, d, max(3*d, slowControl))
	if err != nil && ctx.Err() == nil { // its first or last packet got lost
		return burst{lost: 1}, nil
	}
	if err != nil {
		return b, err
	}
	after, err := machineCPU()
	return burst{pps: s.packets / s.seconds, lost: s.lost, cpu: (after - before) / s.packets * 1e6}, err
}

// stream is what a steady stream of datagrams came to.
type stream struct {
	packets, seconds float64
	lost             float64 // share
	jitter           float64 // ms, smoothed as in RFC 3550, section 6.4.1
}

// datagrams sends so many bytes each at a rate, in bit/s of payload as iperf3
// writes it, 0: all it can, for d. The program has the time to be done.
func (c *carrier) datagrams(ctx context.Context, bytes int, rate string, buffer int, d, limit time.Duration) (stream, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.udp(ctx, "-b", rate, "-l", strconv.Itoa(bytes), "-w", strconv.Itoa(buffer), "-t", strconv.Itoa(int(d.Seconds())))
}

// udp runs iperf3's client for datagrams.
func (c *carrier) udp(ctx context.Context, args ...string) (stream, error) {
	var r struct {
		End struct {
			Sum struct {
				Seconds float64 `json:"seconds"`
				Packets float64 `json:"packets"`
				Lost    float64 `json:"lost_packets"`
				Jitter  float64 `json:"jitter_ms"`
			} `json:"sum"`
		} `json:"end"`
	}
	if err := iperf(ctx, c.client, c.server, &r, append([]string{"-p", strconv.Itoa(streamPort), "-u"}, args...)...); err != nil {
		return stream{}, err
	}
	s := r.End.Sum
	if s.Packets == 0 || s.Seconds == 0 {
		return stream{}, errors.New("iperf3: no datagram was sent")
	}
	return stream{packets: s.Packets, seconds: s.Seconds, lost: s.Lost / s.Packets, jitter: s.Jitter}, nil
}

// socketBuffer is packetBuffer, or less: iperf3 fails when the kernel grants less
// than it requests.
func socketBuffer() (int, error) {
	size := packetBuffer
	for _, name := range []string{"rmem_max", "wmem_max"} {
		b, err := os.ReadFile("/proc/sys/net/core/" + name)
		if err != nil {
			return 0, fmt.Errorf("socket buffer: %w", err)
		}
		most, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return 0, fmt.Errorf("socket buffer: %s: %w", name, err)
		}
		size = min(size, most)
	}
	return size, nil
}
