// Command edgemesh-cni is the CNI plugin of the EdgeMesh pod network. It plugs
// pods into the node's bridge and gives them addresses of the node's blocks.
//
// A container runtime calls it with CNI_COMMAND set. An operator calls it with
// arguments: "edgemesh-cni ipam" shows and mends the address store.
package main

import (
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

const about = `edgemesh-cni: CNI plugin of the EdgeMesh pod network
Called by a container runtime; operators: edgemesh-cni ipam help`

func main() {
	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		os.Exit(operate(os.Args[1:], os.Stdout, os.Stderr))
	}
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status},
		version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), about)
}
