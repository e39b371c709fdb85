package control

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// echo is a backend that has a name.
type echo struct{}

func (echo) Status() Status { return Status{Node: "edge-1"} }
func (echo) Ping(_ context.Context, r PingRequest) (PingReply, error) {
	return PingReply{Target: r.Target}, nil
}
func (echo) Doctor(context.Context) []Finding { return nil }

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
