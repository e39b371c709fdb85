package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Gaps is what a flow saw: podtool's report.
type Gaps struct {
	Sent      int       `json:"sent"`
	Received  int       `json:"received"`
	Lost      int       `json:"lost"`
	Doubled   int       `json:"doubled"`
	Reordered int       `json:"reordered"`
	GapMs     float64   `json:"gapMs"` // the longest time without an answer
	P50Ms     float64   `json:"p50Ms"`
	GapAt     time.Time `json:"gapAt"` // when it began
	Silences  []Silence `json:"silences"`
	Error     string    `json:"error"`
}

// Silence is a time of more than a second without an answer.
type Silence struct {
	At time.Time `json:"at"` // the answer before it
	Ms float64   `json:"ms"` // to the answer after it
}

// Length is how long it lasted.
func (s Silence) Length() time.Duration { return time.Duration(s.Ms * float64(time.Millisecond)) }

// Gap is the longest time without an answer.
func (g Gaps) Gap() time.Duration { return time.Duration(g.GapMs * float64(time.Millisecond)) }

// Flow is a steady flow of small messages from a pod to another and back.
type Flow struct {
	cmd         *exec.Cmd
	out, errOut bytes.Buffer
}

const (
	flowTime = 15 * time.Minute // ends a flow nobody stops
	// FlowInterval is the time between two messages of a flow.
	FlowInterval = 20 * time.Millisecond
)

// StartFlow starts a flow of the given protocol (tcp, udp, icmp) in the network
// namespace of a pod.
func (c *Cluster) StartFlow(ctx context.Context, node, pod, proto, host string) (*Flow, error) {
	pid, err := c.container(ctx, node, podLabel, pod)
	if err != nil {
		return nil, err
	}
	f := &Flow{}
	linger := time.Second
	if proto == "tcp" { // which loses nothing, but may be late on a machine that others load
		linger = 20 * time.Second
	}
	// Not bound to ctx: it is stopped by a signal to podtool, which then reports.
	f.cmd, err = c.Command(context.WithoutCancel(ctx), node, "nsenter", "-t", pid, "-n", c.Tool(), "gaps",
		"--proto", proto, "--interval", FlowInterval.String(), "--duration", flowTime.String(), "--linger", linger.String(), host)
	if err != nil {
		return nil, err
	}
	f.cmd.Stdout, f.cmd.Stderr = &f.out, &f.errOut
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return f, f.cmd.Start()
}

// Stop ends the flow and returns what it saw. The error says that it broke.
func (f *Flow) Stop() (Gaps, error) {
	// nsenter forks to enter a PID namespace; its child is podtool.
	p := f.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p, p))
	if child, convErr := strconv.Atoi(strings.TrimSpace(string(children))); err == nil && convErr == nil {
		err = syscall.Kill(child, syscall.SIGINT)
	}
	var g Gaps
	err = errors.Join(err, f.cmd.Wait())
	if jsonErr := json.Unmarshal(f.out.Bytes(), &g); jsonErr != nil {
		err = errors.Join(err, jsonErr)
	}
	if err != nil {
		return g, fmt.Errorf("flow: %w: %s", err, f.errOut.String())
	}
	return g, nil
}
