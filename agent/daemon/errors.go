package daemon

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrLANInside means that the host would lose its own LAN to the pod network.
	ErrLANInside = errors.New("this node's LAN is inside the pod range and would become unreachable; give the cluster other podCIDRs, or the LAN other addresses")
	// ErrNoTarget means that a ping names neither a member nor an address of one.
	ErrNoTarget = errors.New("no such member")
	// ErrLocked means that another agent uses the state directory.
	ErrLocked = errors.New("another agent runs on this state directory")
	// ErrHostTaken means that an agent with another state directory has the host.
	ErrHostTaken = errors.New("another agent runs on this host")
	// ErrWaiting means that the agent has no membership yet, so there is nobody to ping.
	ErrWaiting = errors.New("the agent still waits for its first membership: `edgemesh-agent doctor` says why")
)

// ConfigError is an error that the operator fixes in a file; the agent exits with 2. Every
// other error of Run is the system's (exit code 1).
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

func configError(err error) error { return &ConfigError{err} }

// keyError says why the agent cannot read its key: the operator fixes that, unless the
// disk is full or fails.
func keyError(err error) error {
	for _, system := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO} {
		if errors.Is(err, system) {
			return err
		}
	}
	return configError(err)
}

// hostTaken explains that another process has the TUN.
func hostTaken(err error) error {
	return fmt.Errorf("%w: %w Stop it first: one agent runs per host, whatever its stateDir", ErrHostTaken, err)
}
