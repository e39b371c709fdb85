package cniconf

import "errors"

var (
	// ErrNoPlugin means that the plugin is not beside the agent's own binary.
	ErrNoPlugin = errors.New("the CNI plugin is missing; install it beside the agent, or set cniBinDir to \"\" and install it yourself")
	// ErrWaits means that there is no conflist that pods could be made with. All
	// else is done.
	ErrWaits = errors.New("the CNI configuration waits")
	// ErrFormer means that plugin and conflist that were there before stay: pods could
	// not be made with those configured, or these could not be written.
	ErrFormer = errors.New("the former CNI configuration stays in force")
)
