package kubeapi

import "os"

// Environ is the environment of Kubernetes' and Helm's programs in tests: this process's, and more. They hold little here,
// and spend a third of their processor time on collecting garbage unless they do it more rarely.
func Environ(more ...string) []string {
	return append(append(os.Environ(), "GOGC=400"), more...)
}
