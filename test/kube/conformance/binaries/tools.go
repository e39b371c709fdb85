//go:build tools

// Package binaries pins Kubernetes' test suite to the module graph of the cluster's programs (test/kubeapi/binaries), so that build.sh
// can build it from its modules. It is a module of its own: nothing of it reaches the agent's.
package binaries

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
