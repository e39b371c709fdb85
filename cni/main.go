// Command edgemesh-cni is the CNI plugin of the EdgeMesh pod network. It plugs
// pods into the node's bridge and gives them addresses of the node's blocks.
//
// A container runtime calls it with CNI_COMMAND set. An operator calls it with
// arguments: "edgemesh-cni ipam" shows and mends the address store.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"
)

// version is set by the linker.
var version = "dev"

const about = `edgemesh-cni: CNI plugin of the EdgeMesh pod network
Called by a container runtime; operators: edgemesh-cni ipam help`

func main() {
	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		os.Exit(operate(os.Args[1:], os.Stdout, os.Stderr))
	}
	p := &plugin{}
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status},
		cniversion.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), about)
	if err != nil {
		p.print(err)
		os.Exit(1)
	}
}

// plugin is this process's one call by a runtime.
type plugin struct {
	version string // cniVersion of the configuration, once it is read
}

// print writes an error as the specification wants it, which includes the
// version of the call.
func (p *plugin) print(err *types.Error) {
	v := p.version
	if v == "" {
		v = cniversion.Current()
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "    ")
	if werr := enc.Encode(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{v, err}); werr != nil {
		fmt.Fprintln(os.Stderr, "edgemesh-cni:", err, werr)
	}
}
