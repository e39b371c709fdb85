package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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
	"edgemesh/test/fair"
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
				var began string
				dog := watchdog.New(watchdog.Config{Block: func(loop string) { began = loop; <-back; runtime.Goexit() }})
				loop := dog.Loop(x.loop)
				calls := dog.Loop("control socket")
				go x.call(&membership{loop: loop}, &backend{calls: calls})
				synctest.Wait()
				if began != x.loop {
					t.Errorf("%q began work, not %q", began, x.loop)
				}
				close(back)
			})
		})
	}
}

// For an hour after a restart a note says what hung; it is no problem any longer.
func TestHungBeforeIsANote(t *testing.T) {
	dir := t.TempDir()
	text := fmt.Sprintf(`[{"at": %[1]q, "loops": ["membership", "tunnel"]}, {"at": %[1]q, "loops": ["membership"]}]`, time.Now().Add(-time.Second).Format(time.RFC3339Nano))
	if err := os.WriteFile(filepath.Join(dir, watchdog.File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	dog := watchdog.New(watchdog.Config{})
	dog.Remember(dir)
	all := hungLoops(dog)
	if len(all) != 2 || all[0].Severity != findings.Note || all[0].Subject != "membership" || !strings.Contains(all[0].Text, "restarted itself at ") || time.Since(*all[0].Since) > time.Minute {
		t.Errorf("%+v", all)
	}
}

// A thread that sits in the kernel, here in the open of a FIFO, hides no hang: it is named, without the promise of a restart.
func TestHungDuringCall(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	thread, opened := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(opened)
		runtime.LockOSThread()
		thread <- unix.Gettid()
		if r, err := os.Open(fifo); err == nil {
			r.Close()
		}
	}()
	sits := fmt.Sprint(unix.SYS_OPENAT, " ")
	call := fmt.Sprintf("/proc/self/task/%d/syscall", <-thread)
	fair.Eventually(t, 10*time.Second, "a thread sits in openat", fair.True(func() bool {
		text, err := os.ReadFile(call)
		return err == nil && strings.HasPrefix(string(text), sits)
	}))
	synctest.Test(t, func(t *testing.T) {
		dog := watchdog.New(watchdog.Config{})
		defer dog.Start(t.Context())()
		_, end := dog.Loop("membership").Begin(t.Context())
		defer end()
		time.Sleep(6 * time.Minute)
		all := hungLoops(dog)
		if len(all) != 1 || all[0].Severity != findings.Broken || !strings.Contains(all[0].Remedy, "does not restart itself") || dog.Healthy() != nil {
			t.Errorf("%+v, %v", all, dog.Healthy())
		}
	})
	if w, err := os.OpenFile(fifo, os.O_WRONLY, 0); err == nil {
		w.Close()
	}
	<-opened
}
