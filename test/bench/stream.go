package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

const (
	streamPort = 5202   // iperf3's usual port is the bulk flow's
	streamRate = "10M"  // bit/s of payload
	streamSize = "1200" // bytes of payload in a datagram
	streamLoss = 0.01   // of the link
	// streamBuffer of the sockets, bytes, for the times in which a busy machine does
	// not run the receiver. iperf3 fails when the kernel grants less; twice the
	// usual net.core.rmem_max is what SO_RCVBUF gives.
	streamBuffer = "400K"
	// streamMargin is how much earlier the bulk flow begins and how much later it
	// ends.
	streamMargin = time.Second
)

// stream is what a steady flow of datagrams beside a bulk flow came to.
type stream struct {
	lost   float64 // per cent
	jitter float64 // ms, smoothed as in RFC 3550, section 6.4.1
	bulk   float64 // Mbit/s of the flow beside it
}

// measureStream sends datagrams for d while a bulk flow runs.
func (c *carrier) measureStream(ctx context.Context, d time.Duration) (s stream, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*d+setUpTime)
	defer cancel()
	beside := make(chan error, 1)
	go func() {
		received, seconds, _, err := c.flow(ctx, d+2*streamMargin)
		s.bulk = received * 8 / 1e6 / seconds
		beside <- err
	}()
	select {
	case <-time.After(streamMargin):
	case <-ctx.Done():
	}
	out, err := c.client.Run(ctx, "iperf3", "-c", c.server.IP4().String(), "-p", strconv.Itoa(streamPort), "-J",
		"-u", "-b", streamRate, "-l", streamSize, "-w", streamBuffer, "-t", strconv.Itoa(int(d.Seconds())))
	if err := errors.Join(err, <-beside); err != nil {
		return s, err
	}
	var report struct {
		End struct {
			Sum struct {
				Packets float64 `json:"packets"`
				Lost    float64 `json:"lost_packets"`
				Jitter  float64 `json:"jitter_ms"`
			} `json:"sum"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return s, fmt.Errorf("iperf3: %w", err)
	}
	r := report.End.Sum
	if r.Packets == 0 {
		return s, fmt.Errorf("iperf3 reports no datagrams: %s", out)
	}
	s.lost, s.jitter = 100*r.Lost/r.Packets, r.Jitter
	return s, nil
}

// serveStream starts the server for it.
func (c *carrier) serveStream() error {
	_, err := c.server.Start("iperf3-udp-"+c.name, "iperf3", "-s", "-p", strconv.Itoa(streamPort))
	return err
}
