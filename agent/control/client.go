package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"edgemesh/internal/logs"
)

// ErrNotRunning means that nothing listens on the socket.
var ErrNotRunning = errors.New("no agent is running here")

// maxAnswer bounds a response's body, in bytes: 10 000 members fit.
const maxAnswer = 64 << 20

// maxError bounds the body of one that says what is wrong.
const maxError = 64 << 10

// Client talks to the agent of one runtime directory.
type Client struct {
	dir    string
	socket string
	http   *http.Client
}

// NewClient returns a client for the agent whose runtime directory is dir.
func NewClient(dir string) *Client {
	socket := filepath.Join(dir, SocketFile)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{dir: dir, socket: socket, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Status returns the agent's view of its relays and peers.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, http.MethodGet, pathStatus, nil)
}

// Ping has the agent send probes; it returns when all are answered or lost.
func (c *Client) Ping(ctx context.Context, r PingRequest) (PingReply, error) {
	return call[PingReply](ctx, c, http.MethodPost, pathPing, r)
}

// Doctor has the agent check itself, its host and its relays.
func (c *Client) Doctor(ctx context.Context) ([]Finding, error) {
	return call[[]Finding](ctx, c, http.MethodPost, pathDoctor, nil)
}

// ErrTooOld means that the agent does not know a request: it is of an older release than the command.
var ErrTooOld = errors.New("the agent is of an older release than this command: restart it, so that both are the same")

// Explain has the agent follow a packet to a node or a pod's address.
func (c *Client) Explain(ctx context.Context, to string) ([]Finding, error) {
	return call[[]Finding](ctx, c, http.MethodPost, pathTo, PingRequest{Target: to})
}

// LogLevel sets the level of the agent's log, unless level is "", and returns it.
func (c *Client) LogLevel(ctx context.Context, level string) (string, error) {
	method, body := http.MethodGet, any(nil)
	if level != "" {
		method, body = http.MethodPut, logs.State{Level: level}
	}
	is, err := call[logs.State](ctx, c, method, logs.Path, body)
	return is.Level, err
}

// call makes one request. The error wraps ErrNotRunning when nothing listens.
func call[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var out T
	resp, err := c.request(ctx, method, path, body)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return out, fmt.Errorf("read the agent's response: %w", err)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return out, fmt.Errorf("decode the agent's response: %w", err)
	}
	return out, nil
}

// request sends one request. The response, which the caller closes, is a good one.
func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		rd = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, rd)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, c.notRunning()
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("open %s: permission denied (run as root)", c.socket)
	case err != nil:
		return nil, fmt.Errorf("query the agent at %s: %w", c.socket, err)
	case resp.StatusCode == http.StatusOK:
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	var e Error
	switch {
	case json.Unmarshal(b, &e) == nil && e.Error != "":
		return nil, errors.New(e.Error)
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusMethodNotAllowed:
		return nil, ErrTooOld
	}
	return nil, fmt.Errorf("the agent answered %s", resp.Status)
}

// notRunning says how to start an agent, and how the last one ended.
func (c *Client) notRunning() error {
	err := fmt.Errorf("%w: nothing listens on %s (start it: `systemctl start edgemesh-agent`, or `edgemesh-agent run`; "+
		"in Kubernetes the DaemonSet edgemesh-agent does; or give its runtime directory with --runtime-dir)", ErrNotRunning, c.socket)
	if last := failure(c.dir); last != "" {
		err = fmt.Errorf("%w; the last one failed at %s", err, last)
	}
	return err
}

// Pings has the agent send probes, and calls each with every outcome as it comes. It returns the reply; where ctx ends or
// each returns an error, that error and what was received until then.
func (c *Client) Pings(ctx context.Context, r PingRequest, each func(PingResult) error) (PingReply, error) {
	so := PingReply{Target: r.Target}
	resp, err := c.request(ctx, http.MethodPost, pathPings, r)
	if err != nil {
		return so, err
	}
	defer resp.Body.Close()
	for in := json.NewDecoder(resp.Body); ; {
		var e pingEvent
		if err := in.Decode(&e); err != nil {
			if ctx.Err() != nil {
				return so, ctx.Err()
			}
			return so, fmt.Errorf("the agent ended while it pinged: %w", err)
		}
		switch {
		case e.Error != "":
			return so, errors.New(e.Error)
		case e.Reply != nil:
			return *e.Reply, nil
		case e.Probe != nil:
			so.Add(*e.Probe, false)
			so.Path, so.Transport, so.Relay, so.Reason = e.Probe.Path, e.Probe.Transport, e.Probe.Relay, e.Probe.Reason
			if err := each(*e.Probe); err != nil {
				return so, err
			}
		}
	}
}

// Observe calls each with every value that Backend.Observe has, until ctx ends, the agent does, or each returns an error.
func (c *Client) Observe(ctx context.Context, each func(json.RawMessage) error) error {
	resp, err := c.request(ctx, http.MethodGet, pathPaths, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for in := json.NewDecoder(resp.Body); ; {
		var v json.RawMessage
		if err := in.Decode(&v); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("the agent ended: %w", err)
		}
		if err := each(v); err != nil {
			return err
		}
	}
}

// FailureFile, in the runtime directory, says why the agent ended. Status and doctor
// show it while no agent runs.
const FailureFile = "agent.failed"

// KeepFailure records why the agent ended; nil removes the record.
func KeepFailure(runtimeDir string, failure error) error {
	path := filepath.Join(runtimeDir, FailureFile)
	if failure == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the record of the last failure: %w", err)
		}
		return nil
	}
	text := time.Now().UTC().Format(time.RFC3339) + " " + strings.Join(strings.Fields(failure.Error()), " ") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("record the failure: %w", err)
	}
	return nil
}

// failure is what KeepFailure recorded, or "".
func failure(runtimeDir string) string {
	b, _ := os.ReadFile(filepath.Join(runtimeDir, FailureFile))
	return strings.TrimSpace(string(b))
}
