package main

import "errors"

// Exit codes, a contract with whoever starts the relay.
const (
	exitFailed = 1 // the system or the network is at fault
	exitUsage  = 2 // the call or the configuration is
)

// errListen means that an address to listen on cannot be had.
var errListen = errors.New("cannot listen")

// exitError carries the exit code an error asks for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usageError(err error) error { return &exitError{exitUsage, err} }
