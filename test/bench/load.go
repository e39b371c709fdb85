package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"edgemesh/test/lab"
)

// flow is what one or several TCP flows came to, together.
type flow struct {
	bytes, seconds float64
	second         float64 // bit/s that the sender sent in the second second, 0 if there was none
}

// rate is in bit/s, 0 of a flow that took no time.
func (f flow) rate() float64 {
	if f.seconds == 0 {
		return 0
	}
	return 8 * f.bytes / f.seconds
}

// flow runs parallel flows, which have to carry something.
func (c *carrier) flow(ctx context.Context, d time.Duration, parallel int) (flow, error) {
	f, err := c.tcp(ctx, d, "-P", strconv.Itoa(parallel))
	if err == nil && (f.bytes == 0 || f.seconds == 0) {
		err = fmt.Errorf("iperf3: %g bytes in %g s", f.bytes, f.seconds)
	}
	if err != nil {
		return flow{}, err
	}
	return f, nil
}

// tcp runs iperf3's client and returns what arrived at the other end.
func (c *carrier) tcp(ctx context.Context, d time.Duration, args ...string) (flow, error) {
	args = append(args, "-t", strconv.Itoa(int(d.Seconds())))
	if c.congestion != "" {
		args = append(args, "-C", c.congestion)
	}
	var r struct {
		Intervals []struct {
			Sum struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum"`
		} `json:"intervals"`
		End struct {
			Received struct {
				Bytes   float64 `json:"bytes"`
				Seconds float64 `json:"seconds"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := iperf(ctx, c.client, c.server, &r, args...); err != nil {
		return flow{}, err
	}
	f := flow{bytes: r.End.Received.Bytes, seconds: r.End.Received.Seconds}
	if len(r.Intervals) > 2 { // the last may be a moment only
		f.second = r.Intervals[1].Sum.Rate
	}
	return f, nil
}

// iperf runs iperf3's client with a report as JSON.
func iperf(ctx context.Context, client, server *lab.Pod, result any, args ...string) error {
	cmd := client.Command(ctx, append([]string{"iperf3", "-J", "-c", server.IP4().String()}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	var failed struct {
		Error string `json:"error"`
	}
	err := errors.Join(json.Unmarshal(stdout.Bytes(), &failed), json.Unmarshal(stdout.Bytes(), result))
	switch {
	case err != nil:
		return errors.Join(runErr, fmt.Errorf("iperf3: %w: %s%s", err, stdout.Bytes(), stderr.Bytes()))
	case runErr != nil || failed.Error != "":
		return errors.Join(runErr, fmt.Errorf("iperf3: %s", failed.Error))
	}
	return nil
}

var pingTime = regexp.MustCompile(`time=([0-9.]+) ms`)

// ping returns the round-trip times in ms of those echo requests that were
// answered, sorted.
func (c *carrier) ping(ctx context.Context, count int) ([]float64, error) {
	// An exit code says that some got lost, which is for the caller to judge.
	out, err := c.client.Run(ctx, "ping", "-n", "-c", strconv.Itoa(count), "-W", "2",
		"-i", strconv.FormatFloat(pingInterval.Seconds(), 'f', -1, 64), c.server.IP4().String())
	var ms []float64
	for _, m := range pingTime.FindAllStringSubmatch(out, -1) {
		v, perr := strconv.ParseFloat(m[1], 64)
		if perr != nil {
			return nil, fmt.Errorf("ping: %w", perr)
		}
		ms = append(ms, v)
	}
	if len(ms) == 0 {
		return nil, fmt.Errorf("ping: no answer: %w", err)
	}
	slices.Sort(ms)
	return ms, nil
}

// answers requests one byte and waits for it, again and again, and returns the
// median in µs.
func (c *carrier) answers(ctx context.Context, proto string, d time.Duration) (float64, error) {
	var r struct {
		Count int     `json:"count"`
		P50Us float64 `json:"p50Us"`
	}
	if err := c.client.Tool(ctx, &r, "answers", "--proto", proto, "--duration", d.String(),
		c.server.IP4().String()); err != nil {
		return 0, err
	}
	if r.Count == 0 {
		return 0, fmt.Errorf("answers over %s: none", proto)
	}
	return r.P50Us, nil
}
