package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// ticks is USER_HZ, the unit of CPU times in /proc: 100 on all Linux.
	ticks = 100
	// idlePings and their interval; the same interval under load.
	idlePings    = 20
	pingInterval = 50 * time.Millisecond
)

// sample is what one flow gave. CPU times are seconds per 10^9 bytes that arrived.
type sample struct {
	gbps       float64   // payload, 10^9 bit/s
	tunnelCPU  float64   // the carrier's own processes at both ends, user and system
	endsCPU    float64   // these and iperf3's at both ends
	machineCPU float64   // all that was not idle, interrupts included, whoever did it
	idle, load []float64 // ping round-trip times in ms, sorted
	lost       int       // pings without an answer under load
	others     float64   // share of the machine's CPU time in use before the flow
	path       string
}

// measure runs one flow from client to server, with a ping before and beside it.
func (c *carrier) measure(ctx context.Context, d time.Duration) (s sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*d+setUpTime)
	defer cancel()
	if s.others, err = busyWhile(func() error {
		s.idle, err = c.ping(ctx, idlePings)
		return err
	}); err != nil {
		return s, err
	}

	pings := int(d/pingInterval) - 10 // they end before the flow does
	beside := make(chan error, 1)
	go func() {
		// Not before the flow has begun.
		select {
		case <-time.After(5 * pingInterval):
		case <-ctx.Done():
		}
		var err error
		s.load, err = c.ping(ctx, pings)
		beside <- err
	}()

	before, err := c.readCPU()
	if err != nil {
		return s, errors.Join(err, <-beside)
	}
	bytes, seconds, clientCPU, err := c.flow(ctx, d)
	if err != nil {
		cancel()
		return s, errors.Join(err, <-beside)
	}
	after, err := c.readCPU()
	if err := errors.Join(err, <-beside); err != nil {
		return s, err
	}
	s.lost = pings - len(s.load)

	gb := bytes / 1e9
	s.gbps = bytes * 8 / 1e9 / seconds
	s.tunnelCPU = (after.tunnel - before.tunnel) / gb
	s.endsCPU = s.tunnelCPU + (after.iperf-before.iperf+clientCPU.Seconds())/gb
	s.machineCPU = (after.machine - before.machine) / gb
	s.path = "–"
	if c.path != nil {
		s.path, err = c.path(ctx)
	}
	return s, err
}

// flow runs iperf3's client and returns what its server received.
func (c *carrier) flow(ctx context.Context, d time.Duration) (received, seconds float64, cpu time.Duration, err error) {
	args := []string{"iperf3", "-c", c.server.IP4().String(), "-t", strconv.Itoa(int(d.Seconds())), "-J"}
	if c.congestion != "" {
		args = append(args, "-C", c.congestion)
	}
	cmd := c.client.Command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	var report struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bytes   float64 `json:"bytes"`
				Seconds float64 `json:"seconds"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		return 0, 0, 0, errors.Join(runErr, fmt.Errorf("iperf3: %w: %s%s", err, stdout.Bytes(), stderr.Bytes()))
	}
	r := report.End.Received
	if runErr != nil || report.Error != "" || r.Bytes == 0 || r.Seconds == 0 {
		return 0, 0, 0, errors.Join(runErr, fmt.Errorf("iperf3: %g bytes in %g s: %s", r.Bytes, r.Seconds, report.Error))
	}
	return r.Bytes, r.Seconds, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

var pingTime = regexp.MustCompile(`time=([0-9.]+) ms`)

// ping returns the round-trip times in ms of those echo requests that were
// answered, sorted.
func (c *carrier) ping(ctx context.Context, count int) ([]float64, error) {
	if count < 1 {
		return nil, nil
	}
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

// cpu is CPU time used so far, in seconds.
type cpu struct{ tunnel, iperf, machine float64 }

func (c *carrier) readCPU() (u cpu, err error) {
	for _, p := range c.tunnel {
		t, err := processCPU(p.PID())
		if err != nil {
			return u, err
		}
		u.tunnel += t
	}
	if u.iperf, err = processCPU(c.iperf.PID()); err != nil {
		return u, err
	}
	u.machine, err = machineCPU()
	return u, err
}

// processCPU reads utime and stime of /proc/PID/stat, see proc_pid_stat(5).
func processCPU(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("cpu time: %w", err)
	}
	// The second field, the name in parentheses, may hold spaces.
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0, fmt.Errorf("cpu time: /proc/%d/stat is %q", pid, b)
	}
	return sumTicks(f[11:13])
}

// machineCPU reads what is not idle in the first line of /proc/stat: user, nice,
// system, irq and softirq, see proc_stat(5).
func machineCPU() (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("cpu time: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("cpu time: /proc/stat begins %q", line)
	}
	return sumTicks(append(f[1:4:4], f[6:8]...))
}

// busyWhile returns the share of all processors' time that was in use during f.
func busyWhile(f func() error) (float64, error) {
	before, err := machineCPU()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	after, err := machineCPU()
	return (after - before) / time.Since(start).Seconds() / float64(runtime.NumCPU()), err
}

func sumTicks(fields []string) (seconds float64, err error) {
	for _, f := range fields {
		v, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cpu time: %w", err)
		}
		seconds += float64(v) / ticks
	}
	return seconds, nil
}
