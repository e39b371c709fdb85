package cniconf

import "errors"

var (
	// ErrNoPlugin means that the plugin is not in the directory of the agent's binary.
	ErrNoPlugin = errors.New("the CNI plugin is missing; install it next to the agent, or set cniBinDir to \"\" and install it yourself")
	// ErrWaits means that the conflist is not installed yet, because no pod could be
	// created with it. Everything else is done.
	ErrWaits = errors.New("the CNI configuration waits")
	// ErrFormer means that the existing plugin and conflist stay: the configured ones could
	// not be written, or no pod could be created with them.
	ErrFormer = errors.New("the former CNI configuration stays in force")
)
