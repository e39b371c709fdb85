package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"edgemesh/agent/findings"
)

// echo is a backend that has a name.
type echo struct{ waits bool }

func (echo) Status(all bool) Status {
	if all {
		return Status{Node: "edge-1", Peers: []PeerStatus{{Node: "edge-2"}, {Node: "edge-3"}}}
	}
	return Status{Node: "edge-1", Idle: 2}
}
func (echo) Ping(_ context.Context, r PingRequest, each func(PingResult)) (PingReply, error) {
	out := PingReply{Target: r.Target}
	if r.Target == "nobody" {
		return out, errors.New("no such member")
	}
	for seq := range r.Count {
		ms := float64(seq + 1)
		p := PingResult{Seq: seq + 1, RTTMs: &ms, Path: "relayed", Reason: "a reason"}
		if r.Target == "fading" && seq > 0 {
			p = PingResult{Seq: seq + 1, Error: "no answer"}
		}
		out.Add(p, true)
		each(p)
	}
	return out, nil
}
func (echo) Doctor(context.Context) []findings.Finding                   { return nil }
func (echo) Explain(context.Context, string) ([]findings.Finding, error) { return nil, nil }
func (e echo) Observe(ctx context.Context, each func(any) error) error {
	if e.waits {
		return errors.New("no membership yet")
	}
	if err := each(map[string]string{"node": "edge-1"}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
func (echo) Policies(string) Policies { return Policies{} }

func (echo) LogLevel() *slog.LevelVar { return new(slog.LevelVar) }

// What status shows on one screen is requested without the idle peers, which are a number.
func TestInUse(t *testing.T) {
	dir := t.TempDir()
	s, err := Serve(dir, echo{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if st, err := NewClient(dir).InUse(t.Context()); err != nil || len(st.Peers) != 0 || st.Idle != 2 {
		t.Errorf("in use: %+v, %v", st, err)
	}
	if st, err := NewClient(dir).Status(t.Context()); err != nil || len(st.Peers) != 2 || st.Idle != 0 {
		t.Errorf("all: %+v, %v", st, err)
	}
}

// A runtime directory that was removed is created again, with the socket in it.
func TestRenew(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := filepath.Join(t.TempDir(), "run")
	s, err := Serve(dir, echo{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	answers := func(when string) {
		t.Helper()
		got, err := NewClient(dir).Status(t.Context())
		if err != nil || got.Node != "edge-1" {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
	}
	answers("at first")
	if err := s.Renew(); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
	answers("as before")
	for range 2 {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := NewClient(dir).Status(t.Context()); err == nil {
			t.Error("an answer without a socket")
		}
		if err := s.Renew(); err != nil {
			t.Fatal(err)
		}
		answers("created again")
	}
	if info, err := os.Stat(filepath.Join(dir, SocketFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left after Close: %v, %v", left, err)
	}
}

// A stream has every probe as it comes, and the reply with all of them; the client may end it.
func TestPings(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := filepath.Join(t.TempDir(), "run")
	s, err := Serve(dir, echo{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := NewClient(dir)
	var seen []int
	r, err := c.Pings(t.Context(), PingRequest{Target: "edge-2", Count: 3}, func(p PingResult) error { seen = append(seen, p.Seq); return nil })
	if err != nil || len(seen) != 3 || r.Sent != 3 || len(r.Probes) != 3 || *r.AvgMs != 2 || *r.MinMs != 1 || *r.MaxMs != 3 {
		t.Errorf("three probes: %v, %+v, %v", seen, r, err)
	}
	enough := errors.New("enough")
	r, err = c.Pings(t.Context(), PingRequest{Target: "edge-2", Count: 3}, func(p PingResult) error {
		if p.Seq == 2 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || r.Received != 2 || r.Path != "relayed" || r.Reason != "a reason" || len(r.Probes) != 0 {
		t.Errorf("ended by the client: %+v, %v", r, err)
	}
	r, err = c.Pings(t.Context(), PingRequest{Target: "fading", Count: 3}, func(p PingResult) error {
		if p.Seq == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || r.Received != 1 || r.Path != "relayed" || r.Reason != "a reason" {
		t.Errorf("the last probes were lost: %+v, %v", r, err)
	}
	if _, err := c.Pings(t.Context(), PingRequest{Target: "nobody"}, func(PingResult) error { return nil }); err == nil || err.Error() != "no such member" {
		t.Errorf("an unknown node: %v", err)
	}
	if _, err := c.Ping(t.Context(), PingRequest{Target: "edge-2"}); err == nil {
		t.Error("one reply for endless probes")
	}
}

// What members report comes immediately; the client may end it.
func TestObserve(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := filepath.Join(t.TempDir(), "run")
	s, err := Serve(dir, echo{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	enough := errors.New("enough")
	var got string
	err = NewClient(dir).Observe(t.Context(), func(v json.RawMessage) error { got = string(v); return enough })
	if !errors.Is(err, enough) || got != `{"node":"edge-1"}` {
		t.Errorf("%s, %v", got, err)
	}
	dir = filepath.Join(t.TempDir(), "run")
	w, err := Serve(dir, echo{waits: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := NewClient(dir).Observe(t.Context(), func(json.RawMessage) error { return nil }); err == nil || err.Error() != "no membership yet" {
		t.Error(err)
	}
}

// An agent that listens and does not answer, or not to the end, is distinguished from one that does not run; an answer has an end.
func TestSilent(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, SocketFile))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := newClient(dir, 50*time.Millisecond, maxAnswer)
	defer c.http.CloseIdleConnections()
	queries := map[string]func() error{
		"status": func() error { _, err := c.Status(t.Context()); return err },
		"doctor": func() error { _, err := c.Doctor(t.Context()); return err },
		"ping":   func() error { _, err := c.Pings(t.Context(), PingRequest{Target: "a"}, nil); return err },
		"map":    func() error { return c.Observe(t.Context(), nil) },
	}
	for name, query := range queries { // nobody accepts
		if err := query(); !errors.Is(err, ErrSilent) || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "restart") {
			t.Errorf("%s: %v", name, err)
		}
	}
	goes := make(chan struct{})
	half := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("{"))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-goes:
		case <-r.Context().Done():
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = half.Serve(l) }()
	if _, err := c.Status(t.Context()); !errors.Is(err, ErrSilent) {
		t.Errorf("half an answer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	close(goes)
	_ = half.Close()
	<-done
}

// What is longer than any answer is not read to its end, nor a value of a stream that has no end.
func TestTooLong(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, SocketFile))
	if err != nil {
		t.Fatal(err)
	}
	flood := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, err := w.Write([]byte(`{"node":"`)); err == nil; {
			_, err = w.Write(bytes.Repeat([]byte("more"), 1<<10))
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = flood.Serve(l) }()
	c := newClient(dir, time.Minute, 1<<20)
	_, err = c.Status(t.Context())
	_, perr := c.Pings(t.Context(), PingRequest{Target: "a"}, nil)
	for name, err := range map[string]error{"status": err, "ping": perr, "map": c.Observe(t.Context(), nil)} {
		if !errors.Is(err, errTooLong) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.http.CloseIdleConnections()
	_ = flood.Close()
	<-done
}

// An agent that does not know a request is older than the command.
func TestTooOld(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, SocketFile))
	if err != nil {
		t.Fatal(err)
	}
	old := &http.Server{Handler: http.NewServeMux(), ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = old.Serve(l) }()
	if _, err := NewClient(dir).Pings(t.Context(), PingRequest{Target: "a"}, nil); !errors.Is(err, ErrTooOld) {
		t.Errorf("%v, want %v", err, ErrTooOld)
	}
	_ = old.Close()
	<-done
	if _, err := NewClient(dir).Status(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without an agent: %v", err)
	}
}
