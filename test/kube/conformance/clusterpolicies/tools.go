//go:build tools

// Package clusterpolicies pins the conformance suite of ClusterNetworkPolicies, so that build.sh can build it from its module. It is a
// module of its own: nothing of it reaches the agent's.
package clusterpolicies

import (
	_ "sigs.k8s.io/network-policy-api/conformance/tests"
)
