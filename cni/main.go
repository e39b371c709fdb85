// Command edgemesh-cni is the CNI plugin of the EdgeMesh pod network. It plugs
// pods into the node's bridge and gives them addresses of the node's blocks.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

const about = "edgemesh-cni: CNI plugin of the EdgeMesh pod network"

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del},
		version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), about)
}
