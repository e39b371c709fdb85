package daemon

import "errors"

// ErrLANInside means that the host would lose its own LAN to the pod network.
var ErrLANInside = errors.New("this node's LAN is inside the pod range, and would be out of its reach; give the cluster other podCIDRs, or the LAN other addresses")

// ErrNoTarget means that a ping names neither a member nor an address of one.
var ErrNoTarget = errors.New("no such member")

// ConfigError is an error that the operator mends in a file; the agent exits
// with 2. Every other error of Run is the system's (exit code 1).
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

func configError(err error) error { return &ConfigError{err} }
