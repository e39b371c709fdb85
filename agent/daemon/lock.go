package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
)

// lockFile is held for the life of the process: one agent per state directory,
// whatever form it runs in.
const lockFile = "agent.lock"

// Lock is an exclusive hold on a state directory. The kernel releases it with
// the process, so a killed agent leaves none behind.
type Lock struct{ f *os.File }

// LockStateDir makes dir (0700) if needed and takes its lock. The error is
// ErrLocked, naming the holder, or one of the file system.
func LockStateDir(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		holder, _ := os.ReadFile(path)
		return nil, fmt.Errorf("%w: %s is held by process %s; stop it first, or use another stateDir",
			ErrLocked, path, strings.TrimSpace(string(holder)))
	}
	// The holder's ID is for people. The lock is held on a full disk, too.
	_ = f.Truncate(0)
	_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	return &Lock{f}, nil
}

// lockRetry is how often a waiting agent tries the lock: part of the gap when one takes
// over from another. Who waits for longer than a rollout takes does so at lockLater.
const lockRetry, lockLater = 10 * time.Millisecond, 100 * time.Millisecond

// WaitStateDir is LockStateDir, but waits until the holder of the lock ends. It returns
// ctx's error if ctx ends first. It calls meanwhile each time that it looks.
func WaitStateDir(ctx context.Context, dir string, meanwhile func(), logger *slog.Logger) (*Lock, error) {
	began, every := time.Now(), lockRetry
	for reported := false; ; reported = true {
		lock, err := LockStateDir(dir)
		if !errors.Is(err, ErrLocked) {
			return lock, err
		}
		if !reported {
			logger.Info("standing by until the agent that runs here ends", "err", err)
		}
		meanwhile()
		if time.Since(began) > checkLater {
			every = lockLater
		}
		if !wake.Sleep(ctx, every) {
			return nil, ctx.Err()
		}
	}
}

// Release gives the lock back.
func (l *Lock) Release() { l.f.Close() }
