package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/logs"
)

var (
	// ErrNotRunning means that nothing listens on the socket.
	ErrNotRunning = errors.New("no agent is running here")
	// ErrSilent means that an agent listens there, and does not answer.
	ErrSilent = errors.New("the agent does not answer")
	// ErrTooOld means that the agent does not know a request: it is of an older release than the command.
	ErrTooOld = errors.New("the agent is of an older release than this command: restart it, so that both are the same")
)

// answerTime bounds the wait for an answer, or for the first of several. Doctor and a ping take up to ten seconds, on an
// overloaded host more.
const answerTime = time.Minute

// maxAnswer bounds a response's body, or one value of those of a stream, in bytes: 10 000 members fit.
const maxAnswer = 64 << 20

// maxError bounds the body of one that says what is wrong.
const maxError = 64 << 10

// Client talks to the agent of one runtime directory.
type Client struct {
	dir      string
	socket   string
	http     *http.Client
	patience time.Duration
	most     int64 // bytes of an answer
}

// NewClient returns a client for the agent whose runtime directory is dir.
func NewClient(dir string) *Client { return newClient(dir, answerTime, maxAnswer) }

func newClient(dir string, patience time.Duration, most int64) *Client {
	socket := filepath.Join(dir, SocketFile)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: patience}
		return d.DialContext(ctx, "unix", socket)
	}
	t := &http.Transport{DialContext: dial, ResponseHeaderTimeout: patience}
	return &Client{dir: dir, socket: socket, http: &http.Client{Transport: t}, patience: patience, most: most}
}

// Status returns the agent's view of its relays and peers.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, http.MethodGet, pathStatus, nil)
}

// InUse is Status with the peers in use, and the number of the others; of an older agent with all.
func (c *Client) InUse(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, http.MethodGet, pathStatus+"?"+onlyInUse, nil)
}

// Ping makes the agent send probes; it returns when all are answered or lost.
func (c *Client) Ping(ctx context.Context, r PingRequest) (PingReply, error) {
	return call[PingReply](ctx, c, http.MethodPost, pathPing, r)
}

// Doctor makes the agent check itself, its host and its relays.
func (c *Client) Doctor(ctx context.Context) ([]findings.Finding, error) {
	return call[[]findings.Finding](ctx, c, http.MethodPost, pathDoctor, nil)
}

// Explain makes the agent follow a packet to a node or a pod's address.
func (c *Client) Explain(ctx context.Context, to string) ([]findings.Finding, error) {
	return call[[]findings.Finding](ctx, c, http.MethodPost, pathTo, PingRequest{Target: to})
}

// Policies are the NetworkPolicies in force on this node: for one pod, or all with "".
func (c *Client) Policies(ctx context.Context, pod string) (Policies, error) {
	return call[Policies](ctx, c, http.MethodGet, pathPolicy+"?pod="+url.QueryEscape(pod), nil)
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
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	resp, err := c.request(ctx, method, path, body)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(&bounded{resp.Body, c.most})
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	return out, c.unreadable(err)
}

// errTooLong ends the reading of an answer.
var errTooLong = errors.New("it is too long")

// bounded is a reader that fails when more than left bytes come.
type bounded struct {
	io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// unreadable explains an answer that cannot be read; nil stays nil.
func (c *Client) unreadable(err error) error {
	switch {
	case err == nil:
		return nil
	case timedOut(err):
		return c.silent()
	}
	return fmt.Errorf("read the answer on %s: %w; if the agent is of another release than this command, restart it", c.socket, err)
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
	if err != nil {
		return nil, c.unreached(err)
	}
	if resp.StatusCode == http.StatusOK {
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

// unreached says why a request got no answer.
func (c *Client) unreached(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return c.notRunning()
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL): // the address of a socket has at most 107 bytes
		return fmt.Errorf("%s: no socket can be there; give the agent's runtime directory with --runtime-dir", c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("open %s: permission denied (run as root)", c.socket)
	case timedOut(err):
		return c.silent()
	}
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err // without the path, which is nobody's to know
	}
	return fmt.Errorf("query the agent at %s: %w", c.socket, err)
}

// silent says what to do about an agent that hangs.
func (c *Client) silent() error {
	return fmt.Errorf("%w: something listens on %s, and nothing came within %v; its log may say why, and a restart helps "+
		"(`systemctl restart edgemesh-agent`, or delete its pod)", ErrSilent, c.socket, c.patience)
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
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

// Pings makes the agent send probes, and calls each with every outcome as it comes. It returns the reply; where ctx ends or
// each returns an error, that error and what was received until then.
func (c *Client) Pings(ctx context.Context, r PingRequest, each func(PingResult) error) (PingReply, error) {
	so := PingReply{Target: r.Target}
	err := values(ctx, c, http.MethodPost, pathPings, r, func(e pingEvent) (bool, error) {
		switch {
		case e.Error != "":
			return true, errors.New(e.Error)
		case e.Reply != nil:
			so = *e.Reply
			return true, nil
		case e.Probe != nil:
			so.Add(*e.Probe, false)
			if e.Probe.Path != "" { // a lost one took none: the last path that is known stays
				so.Path, so.Transport, so.Relay = e.Probe.Path, e.Probe.Transport, e.Probe.Relay
			}
			so.Reason = cmp.Or(e.Probe.Reason, so.Reason)
			return false, each(*e.Probe)
		}
		return false, nil
	})
	return so, err
}

// Observe calls each with every value that Backend.Observe has, until ctx ends, the agent does, or each returns an error.
func (c *Client) Observe(ctx context.Context, each func(json.RawMessage) error) error {
	return values(ctx, c, http.MethodGet, pathPaths, nil, func(v json.RawMessage) (bool, error) { return false, each(v) })
}

// values calls each with every value of a response, until it returns true or an error.
func values[T any](ctx context.Context, c *Client, method, path string, body any, each func(T) (last bool, err error)) error {
	resp, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	from := &bounded{Reader: resp.Body}
	for in := json.NewDecoder(from); ; {
		var v T
		from.left = c.most
		if err := in.Decode(&v); err != nil {
			return c.broken(ctx, err)
		}
		if last, err := each(v); last || err != nil {
			return err
		}
	}
}

// errEnded is the agent's end in the middle of an answer.
var errEnded = errors.New("the agent ended, or was restarted, before it had answered: run the command again")

// broken says why a stream broke off.
func (c *Client) broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return errEnded
	}
	return c.unreadable(err)
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
