package install

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"edgemesh/agent/cri"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/client"
)

// refuseOld refuses a cluster that is too old for EdgeMesh, if its API answers now. The error wraps client.ErrTooOld.
func (i *installer) refuseOld(ctx context.Context, text string) error {
	cfg, err := i.parse([]byte(text))
	if err != nil || cfg.Membership.Kubernetes == nil || i.o.Version == nil {
		return nil
	}
	k := cfg.Membership.Kubernetes
	v, err := i.o.Version(ctx, client.Access{Kubeconfig: k.Kubeconfig, Server: k.Server, LocalUID: k.LocalUID})
	if err != nil {
		return nil // offline, or not a node yet: the agent says it again
	}
	return client.TooOld(v)
}

// directories are the lines of a new agent.yaml for the directories in which the container runtime
// looks, where they differ from the agent's defaults.
func (i *installer) directories() string {
	c, err := cri.Find(i.o.Root)
	if err != nil {
		i.runtimeUnknown(err)
		return ""
	}
	var b strings.Builder
	if c.ConfDir != config.DefaultCNIConfDir {
		fmt.Fprintf(&b, "cniConfDir: %s\n", c.ConfDir)
	}
	if bin := c.BinDir(); bin != config.DefaultCNIBinDir {
		fmt.Fprintf(&b, "cniBinDir: %s\n", bin)
	}
	return b.String()
}

// compare notes for the operator if the existing agent.yaml names directories in which the runtime does not look.
func (i *installer) compare(text []byte) {
	cfg, err := i.parse(text)
	if err != nil || cfg.CNIMode == config.CNIKeep {
		return // whoever needs the configuration reports the error
	}
	c, err := cri.Find(i.o.Root)
	if err != nil {
		i.runtimeUnknown(err)
		return
	}
	for _, d := range c.Differences(cfg.CNIConfDir, cfg.CNIBinDir) {
		i.Todo = append(i.Todo, fmt.Sprintf("in %s set %s: %s, and run this command again: %s", config.DefaultPath, d.Key, d.Want, d))
	}
}

// runtimeUnknown notes for the operator why the runtime's directories are not known. A host without a runtime needs none.
func (i *installer) runtimeUnknown(err error) {
	if !errors.Is(err, cri.ErrNone) {
		i.Todo = append(i.Todo, fmt.Sprintf("make sure that cniConfDir and cniBinDir in %s are where the container runtime looks "+
			"(`edgemesh-agent doctor` compares them): %v", config.DefaultPath, err))
	}
}
