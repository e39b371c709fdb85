package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errLocked means that another relay uses the state directory.
var errLocked = errors.New("another relay runs on this state directory, so with the same peer ID; stop it, or set another stateDir here")

// lockDir locks a state directory, which exists, until unlock or the end of this
// process: of two relays with one key each would get half of the members. The
// directory itself is locked, so it may be read-only. The error wraps errLocked or
// the file system's.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return func() { f.Close() }, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLocked
	}
	return nil, fmt.Errorf("%s: %w", dir, err)
}
