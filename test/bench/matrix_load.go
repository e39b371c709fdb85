package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"edgemesh/test/bench/matrix"
	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
)

// warm sends in each direction the cell uses, so that their lines are known before they are measured.
func (t *turn) warm(ctx context.Context, cell matrix.Cell) error {
	d := cell.Lasts(warmTime) / 2
	jobs := []job{func(ctx context.Context) error {
		_, err := t.mbps(ctx, d, "-R")
		return err
	}}
	if cell.Load == matrix.BothDirections {
		jobs = append(jobs, func(ctx context.Context) error {
			_, err := t.upload(ctx, d)
			return err
		})
	}
	return together(ctx, jobs)
}

// load runs everything that the cell has side by side.
func (t *turn) load(ctx context.Context, cell matrix.Cell, d time.Duration, m *matrix.Round) error {
	var jobs []job
	flows := 1
	switch cell.Load {
	case matrix.EightFlows:
		flows = 8
	case matrix.BothDirections:
		jobs = append(jobs, func(ctx context.Context) (err error) {
			m.UpMbps, err = t.upload(ctx, d)
			return err
		})
	case matrix.Voice:
		jobs = append(jobs, func(ctx context.Context) error {
			s, err := t.voice(ctx, d)
			m.VoiceLost, m.VoiceJitter = s.lost, s.jitter
			return err
		})
	}
	if cell.Varies != "" {
		jobs = append(jobs, func(ctx context.Context) error { return t.vary(ctx, cell, d) })
	}
	jobs = append(jobs,
		func(ctx context.Context) (err error) {
			m.Mbps, err = t.mbps(ctx, d, "-R", "-P", strconv.Itoa(flows))
			return err
		},
		func(ctx context.Context) error {
			begun := 5*pingInterval + 4*cell.Delay
			time.Sleep(begun)
			beside, err := t.ping(ctx, max(1, int((d-begun)/pingInterval)-5))
			m.PingMs, m.Ping99Ms = report.Quantile(beside, 0.5), report.Quantile(beside, 0.99)
			return err
		})
	return together(ctx, jobs)
}

// job is a part of a turn.
type job func(context.Context) error

// together runs jobs side by side until all have ended.
func together(ctx context.Context, jobs []job) error {
	errs := make(chan error, len(jobs))
	for _, j := range jobs {
		go func() { errs <- j(ctx) }()
	}
	var err error
	for range jobs {
		err = errors.Join(err, <-errs)
	}
	return err
}

// upload runs a flow upwards, which may be beside one downwards, and returns what arrived, in Mbit/s.
func (t *turn) upload(ctx context.Context, d time.Duration) (float64, error) {
	return t.mbps(ctx, d, "-p", strconv.Itoa(streamPort))
}

// mbps runs flows and returns what arrived, in Mbit/s.
func (t *turn) mbps(ctx context.Context, d time.Duration, args ...string) (float64, error) {
	f, err := t.tcp(ctx, d, args...)
	return f.rate() / 1e6, err
}

// timeouts are TCP's, in both pods.
type timeouts struct{ all, spurious int }

func (t *turn) timeouts(ctx context.Context) (sum timeouts, err error) {
	for _, pod := range []*lab.Pod{t.client, t.server} {
		text, err := pod.Run(ctx, "cat", "/proc/net/netstat")
		if err != nil {
			return sum, err
		}
		sum.all += counter(text, "TCPTimeouts")
		sum.spurious += counter(text, "TCPSpuriousRTOs")
	}
	return sum, nil
}

// counter reads one of /proc/net/netstat: lines of names, and behind each one of numbers.
func counter(text, name string) int {
	lines := strings.Split(text, "\n")
	for i, line := range lines[:len(lines)-1] {
		if at := slices.Index(strings.Fields(line), name); at > 0 {
			if values := strings.Fields(lines[i+1]); at < len(values) {
				n, _ := strconv.Atoi(values[at])
				return n
			}
		}
	}
	return 0
}

// voice sends datagrams downwards.
func (t *turn) voice(ctx context.Context, d time.Duration) (stream, error) {
	return t.udp(ctx, "-R", "-b", voiceRate, "-l", strconv.Itoa(voiceSize), "-t", strconv.Itoa(int(d.Seconds())))
}

// vary changes the rate each second.
func (t *turn) vary(ctx context.Context, cell matrix.Cell, d time.Duration) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for _, share := range cell.Varies.Shares(int(d.Seconds())) {
		if err := t.link.Set(ctx, cell.Link(share)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return t.link.Set(ctx, cell.Link(1))
}

// short is how long a transfer takes, in ms.
func (t *turn) short(ctx context.Context, bytes int) (float64, error) {
	var r struct {
		Seconds float64 `json:"seconds"`
	}
	err := t.client.Tool(ctx, &r, "bulk", "--pull", "--bytes", strconv.Itoa(bytes), t.server.IP4().String())
	return r.Seconds * 1000, err
}
