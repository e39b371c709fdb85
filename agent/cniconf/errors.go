package cniconf

import "errors"

// ErrNoPlugin means that the plugin is not beside the agent's own binary.
var ErrNoPlugin = errors.New("the CNI plugin is missing; install it beside the agent, or set cniBinDir to \"\" and install it yourself")
