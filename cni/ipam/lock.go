package ipam

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockWait bounds the wait for the lock. Its holders do a few writes and at
// most remove an interface; a killed holder's lock goes with it.
const lockWait = 20 * time.Second

// lockDir takes the exclusive flock of the folder itself, so that no lock file
// stands among the records.
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
		// flock(2) cannot be called off; what it gets later is given back.
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
