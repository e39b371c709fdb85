package ipam

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockWait bounds the wait for the lock. A holder makes a few writes and removes at most
// an interface; the lock of a killed holder is released.
const lockWait = 20 * time.Second

// lockDir takes the exclusive flock of the directory itself, so that there is no lock
// file among the records.
func lockDir(dir string, wait time.Duration) (unlock func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the address store: %w", err)
	}
	got := make(chan error, 1)
	go func() {
		for {
			err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
			if !errors.Is(err, syscall.EINTR) {
				got <- err
				return
			}
		}
	}()
	select {
	case err = <-got:
	case <-time.After(wait):
		// flock(2) cannot be cancelled; if it succeeds later, the lock is released.
		go func() {
			<-got
			f.Close()
		}()
		return nil, fmt.Errorf("%w: %s for %s", ErrBusy, dir, wait)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the address store %s: %w", dir, err)
	}
	return f.Close, nil
}
