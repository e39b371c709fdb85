package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// echo is a backend that has a name.
type echo struct{ waits bool }

func (echo) Status() Status { return Status{Node: "edge-1"} }
func (echo) Ping(_ context.Context, r PingRequest, each func(PingResult)) (PingReply, error) {
	out := PingReply{Target: r.Target}
	if r.Target == "nobody" {
		return out, errors.New("no such member")
	}
	for seq := range r.Count {
		ms := float64(seq + 1)
		p := PingResult{Seq: seq + 1, RTTMs: &ms, Path: "relayed", Reason: "a reason"}
		out.Add(p, true)
		each(p)
	}
	return out, nil
}
func (echo) Doctor(context.Context) []Finding                   { return nil }
func (echo) Explain(context.Context, string) ([]Finding, error) { return nil, nil }
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
func (echo) LogLevel() *slog.LevelVar { return new(slog.LevelVar) }

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
	if _, err := c.Pings(t.Context(), PingRequest{Target: "nobody"}, func(PingResult) error { return nil }); err == nil || err.Error() != "no such member" {
		t.Errorf("an unknown node: %v", err)
	}
	if _, err := c.Ping(t.Context(), PingRequest{Target: "edge-2"}); err == nil {
		t.Error("one reply for endless probes")
	}
}

// What members tell comes as it is said; the client may end it.
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
