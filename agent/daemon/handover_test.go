package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"edgemesh/tunnel/tun"
)

// queue is a TUN of which only the descriptor counts.
type queue struct {
	tun.Device
	file *os.File // nil: it has none to share
}

func (q queue) Share() (int, error) {
	if q.file == nil {
		return 0, errors.ErrUnsupported
	}
	return unix.Dup(int(q.file.Fd()))
}

// The descriptor goes to whoever takes over. One that has none, and one that has ended, give an error immediately, and a killed agent's socket is
// in nobody's way.
func TestHandOver(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, handoverFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("a packet"); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	ask := func(file *os.File) (int, error) {
		defer offerTUN(dir, &lastingTUN{dev: queue{file: file}}, slog.New(slog.DiscardHandler))()
		return askTUN(t.Context(), dir)
	}
	fd, err := ask(r)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "queue")
	defer file.Close()
	if got, err := io.ReadAll(file); err != nil || string(got) != "a packet" {
		t.Errorf("%q, %v", got, err)
	}
	if fd, err := ask(nil); err == nil {
		t.Errorf("descriptor %d of a TUN that has none", fd)
	}
	if _, err := askTUN(context.Background(), dir); err == nil {
		t.Error("nobody offers one")
	}
}
