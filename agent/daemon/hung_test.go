package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/watchdog"
)

// Each of these is work of a loop that is watched.
func TestWatchedCalls(t *testing.T) {
	for name, x := range map[string]struct {
		loop string
		call func(*membership, *backend)
	}{
		"changed membership": {"membership", func(m *membership, _ *backend) { m.onState(t.Context(), mesh.State{}) }},
		"changed uplinks":    {"membership", func(m *membership, _ *backend) { m.replan(t.Context()) }},
		"kernel repair":      {"kernel repair", func(m *membership, _ *backend) { repairer{loop: m.loop, source: source.None{}}.run(t.Context()) }},
		"status":             {"control socket: status", func(_ *membership, b *backend) { b.Status(true) }},
		"map":                {"control socket: map", func(_ *membership, b *backend) { b.observed() }},
		"doctor":             {"control socket: doctor", func(_ *membership, b *backend) { b.Doctor(t.Context()) }},
		"explain":            {"control socket: doctor NODE", func(_ *membership, b *backend) { _, _ = b.Explain(t.Context(), "edge-2") }},
		"ping": {"control socket: ping", func(_ *membership, b *backend) {
			_, _ = b.Ping(t.Context(), control.PingRequest{Target: "edge-2", Count: 1}, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				back := make(chan struct{})
				dog := watchdog.New(watchdog.Config{Block: func(string) { <-back; runtime.Goexit() }})
				loop := dog.Loop(x.loop)
				calls := dog.Loop("control socket")
				go x.call(&membership{loop: loop}, &backend{calls: calls})
				synctest.Wait()
				if all := dog.Works(); !slices.ContainsFunc(all, func(w watchdog.Work) bool { return w.Name == x.loop && w.Busy }) {
					t.Errorf("%+v: %s has work", all, x.loop)
				}
				close(back)
			})
		})
	}
}

// A part that cannot be watched any longer is a finding.
func TestCrashedSourceIsAFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dog := watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)})
		dog.Watch("tunnel", func(func(watchdog.Work)) { panic("oh") })
		defer dog.Start(t.Context())()
		time.Sleep(10 * time.Second)
		all := hungLoops(dog)
		if len(all) != 1 || all[0].Severity != findings.Broken || all[0].Subject != "tunnel" || !strings.Contains(all[0].Text, "crashed") {
			t.Errorf("%+v", all)
		}
	})
}

// For an hour after a restart a note says what hung; it is no problem any longer.
func TestHungBeforeIsANote(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := fmt.Sprintf(`{"boot": %q, "runs": [{"at": %d, "hung": ["membership"]}]}`, strings.TrimSpace(string(boot)), now.Nano()-1)
	if err := os.WriteFile(filepath.Join(dir, watchdog.File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	dog := watchdog.New(watchdog.Config{})
	defer dog.Remember(dir)()
	all := hungLoops(dog)
	if len(all) != 1 || all[0].Severity != findings.Note || all[0].Subject != "membership" || !strings.Contains(all[0].Text, "restarted itself at ") || time.Since(*all[0].Since) > time.Minute {
		t.Errorf("%+v", all)
	}
}
