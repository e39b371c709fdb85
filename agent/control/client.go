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
)

// ErrNotRunning means that nothing listens on the socket.
var ErrNotRunning = errors.New("no agent is running here")

// maxAnswer bounds a response's body, in bytes: 10 000 members fit.
const maxAnswer = 64 << 20

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

// call makes one request. The error wraps ErrNotRunning when nothing listens.
func call[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var out T
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return out, fmt.Errorf("encode request: %w", err)
		}
		rd = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, rd)
	if err != nil {
		return out, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		err := fmt.Errorf("%w: nothing listens on %s (start `edgemesh-agent run`, or give its runtime directory with --runtime-dir)", ErrNotRunning, c.socket)
		if last := failure(c.dir); last != "" {
			err = fmt.Errorf("%w; the last one failed at %s", err, last)
		}
		return out, err
	case errors.Is(err, fs.ErrPermission):
		return out, fmt.Errorf("open %s: permission denied (run as root)", c.socket)
	case err != nil:
		return out, fmt.Errorf("query the agent at %s: %w", c.socket, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return out, fmt.Errorf("read the agent's response: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var e Error
		if json.Unmarshal(b, &e) == nil && e.Error != "" {
			return out, errors.New(e.Error)
		}
		return out, fmt.Errorf("the agent answered %s", resp.Status)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return out, fmt.Errorf("decode the agent's response: %w", err)
	}
	return out, nil
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
