// Package keep is `cniMode: keep`: this node's pods stay with another network
// plugin, and EdgeMesh only connects its blocks with those of other nodes.
//
//	blocks.go  what Calico and Cilium keep in the API, and the blocks that gives to nodes (pure)
//
// A node says that it keeps its plugin by the annotation api.ModeAnnotation on its
// MeshNode. The package kube then follows the kinds below, for that node only the
// choice between sources of blocks changes. What the mode means for the kernel is in
// the package host (mesh.Host.Keep); the CNI configuration is withdrawn by the package
// daemon. Flannel and kindnet need nothing of this: they use Node.spec.podCIDRs.
package keep
