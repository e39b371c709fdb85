// Command edgemesh-cni is the CNI plugin of the EdgeMesh pod network. It plugs
// pods into the node's bridge and gives them addresses of the node's blocks.
//
// A container runtime calls it with CNI_COMMAND set. An operator calls it with
// arguments: "edgemesh-cni ipam" shows and mends the address store.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
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
	if err := p.listen(); err != nil {
		p.print(types.NewError(types.ErrIOFailure, "edgemesh-cni: read the configuration: "+err.Error(), ""))
		os.Exit(1)
	}
	info := versions{cniversion.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), p}
	err := skel.PluginMainFuncsWithError(
		skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status}, info, about)
	if err != nil {
		p.print(err)
		os.Exit(1)
	}
}

// plugin is this process's one call by a runtime.
type plugin struct {
	version string // cniVersion of the configuration; empty where it has none
}

// listen reads standard input, of which skel reads a copy: what answers VERSION
// or refuses a call does not know the configuration's version, which each
// answer has to repeat. A terminal is not waited for.
func (p *plugin) listen() error {
	if info, err := os.Stdin.Stat(); os.Getenv("CNI_COMMAND") == "" || err != nil || info.Mode()&os.ModeCharDevice != 0 {
		return nil
	}
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var c struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(input, &c) == nil { // else skel says what is wrong
		p.version = c.CNIVersion
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	os.Stdin = r
	go func() { // ends with the process at the latest
		_, _ = w.Write(input)
		_ = w.Close()
	}()
	return nil
}

// answered is the version that an answer repeats.
func (p *plugin) answered() string { return cmp.Or(p.version, cniversion.Current()) }

// versions answers VERSION.
type versions struct {
	cniversion.PluginInfo
	call *plugin
}

// Encode writes the answer in the version it was asked in.
func (v versions) Encode(w io.Writer) error {
	return json.NewEncoder(w).Encode(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{v.call.answered(), v.SupportedVersions()})
}

// print writes an error as the specification wants it, which includes the
// version of the call.
func (p *plugin) print(err *types.Error) {
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "    ")
	if werr := enc.Encode(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{p.answered(), err}); werr != nil {
		fmt.Fprintln(os.Stderr, "edgemesh-cni:", err, werr)
	}
}
