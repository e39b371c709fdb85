// Command edgemesh-cni is the CNI plugin of the EdgeMesh pod network. It plugs
// pods into the node's bridge and gives them addresses of the node's blocks.
//
// A container runtime calls it with CNI_COMMAND set. An operator calls it with
// arguments: "edgemesh-cni ipam" shows and repairs the address store.
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

// specVersions are the versions of the CNI specification that the plugin follows.
var specVersions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

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
	info := versions{cniversion.PluginSupports(specVersions...), p}
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: coded("ADD", p.add), Del: coded("DEL", p.del), Check: coded("CHECK", p.check), GC: coded("GC", p.gc), Status: p.status,
	}, info, about)
	if err != nil {
		p.print(err)
		os.Exit(1)
	}
}

// plugin is the one call by a runtime that this process serves.
type plugin struct {
	version string // cniVersion of the configuration; empty where it has none
}

// listen reads standard input and leaves skel a copy. Each answer must repeat the
// configuration's version, which skel does not pass to the code that answers VERSION or
// refuses a call. It does not wait for a terminal.
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
	if json.Unmarshal(input, &c) == nil { // otherwise skel says what is wrong
		p.version = c.CNIVersion
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	os.Stdin = r
	go func() { // ends no later than the process
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

// Encode writes the answer in the version of the call.
func (v versions) Encode(w io.Writer) error {
	return json.NewEncoder(w).Encode(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{v.call.answered(), v.SupportedVersions()})
}

// print writes an error in the specification's form, which includes the call's version.
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
