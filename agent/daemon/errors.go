package daemon

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrLANInside means that the host would lose its own LAN to the pod network.
var ErrLANInside = errors.New("this node's LAN is inside the pod range and would become unreachable; give the cluster other podCIDRs, or the LAN other addresses")

// ErrNoTarget means that a ping names neither a member nor an address of one.
var ErrNoTarget = errors.New("no such member")

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
