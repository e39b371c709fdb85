package daemon

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
)

// Before the first membership, status and doctor say what the agent waits for; ping says that it waits.
func TestFirstStart(t *testing.T) {
	dir := t.TempDir()
	w := &firstStart{dir: dir, node: "edge-1", source: "the Kubernetes API", log: slog.New(slog.DiscardHandler)}
	c := control.NewClient(dir)
	if _, err := c.Status(t.Context()); !errors.Is(err, control.ErrNotRunning) {
		t.Fatalf("before there is anything to say: %v", err)
	}
	w.because(errors.New("one\ntwo"), false)
	w.because(errors.New("PodNetwork cluster: missing"), false)
	status, err := c.Status(t.Context())
	if err != nil || status.Node != "edge-1" || len(status.Problems) != 1 || !strings.Contains(status.Problems[0].Text, "PodNetwork cluster: missing") {
		t.Errorf("status %+v, %v", status, err)
	}
	found, err := c.Doctor(t.Context())
	if err != nil || len(found) != 1 || found[0].Severity != findings.Broken || !strings.Contains(found[0].Remedy, "the Kubernetes API") {
		t.Errorf("doctor %+v, %v", found, err)
	}
	if _, err := c.Ping(t.Context(), control.PingRequest{Target: "edge-2", Count: 1}); err == nil || !strings.Contains(err.Error(), "first membership") {
		t.Errorf("ping: %v", err)
	}
	// Where a snapshot connects the node's own pods, it is the key that lacks.
	w.is("edge-1", "12D3new", "the Kubernetes API")
	w.because(errors.New("no route"), true)
	if found := w.findings(); len(found) != 1 || found[0].ID != "key" || !strings.Contains(found[0].Text, "12D3new") || !strings.Contains(found[0].Text, "its own pods have their network") {
		t.Errorf("with a new key: %+v", found)
	}
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); !errors.Is(err, control.ErrNotRunning) {
		t.Errorf("after it: %v", err)
	}
	if err := w.end(); err != nil {
		t.Errorf("ended again: %v", err)
	}
}
