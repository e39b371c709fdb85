package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/self"
	"edgemesh/manifests"
)

// starter writes the first configuration of a node.
type starter struct {
	dir, stateDir, nodeName string
	out                     io.Writer
}

func newInit() *cobra.Command {
	var s starter
	c := &cobra.Command{
		Use:   "init",
		Short: "Write a commented agent.yaml and cluster.yaml for a cluster without Kubernetes",
		Long: `Write DIR/agent.yaml and DIR/cluster.yaml with every key explained, and this node as the
first member; create the node's key if there is none. It is not interactive, and a file that
exists is left as it is. On the other nodes, take over the cluster.yaml of the first one
and add the line that this command prints.`,
		Example: `  edgemesh-agent init
  edgemesh-agent init --node-name shop-1 --dir /etc/edgemesh`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			s.out = c.OutOrStdout()
			return s.run()
		},
	}
	c.Flags().StringVar(&s.dir, "dir", filepath.Dir(config.DefaultPath), "directory for both files")
	c.Flags().StringVar(&s.stateDir, "state-dir", config.DefaultStateDir, "state directory for a new agent.yaml; the node's key is made there")
	c.Flags().StringVar(&s.nodeName, "node-name", "", "the node's name for a new agent.yaml, if it differs from the host name")
	return c
}

func (s *starter) run() error {
	path := filepath.Join(s.dir, "agent.yaml")
	agent, err := os.ReadFile(path)
	isNew := errors.Is(err, os.ErrNotExist)
	if isNew {
		agent, err = s.agent(), nil
	}
	if errors.Is(err, os.ErrPermission) {
		return cli.Usage(fmt.Errorf("--dir: %w; run as root, or choose another directory", err))
	}
	if err != nil {
		return cli.Usage(err)
	}
	// An existing file says where this node's key is and what its name is.
	cfg, err := config.Parse(path, agent, hostName())
	if err != nil && isNew {
		return cli.Usage(fmt.Errorf("%w; nothing is written: --node-name and --state-dir set it", err))
	}
	if err != nil {
		return cli.Usage(err)
	}
	id, err := self.PeerID("stateDir", cfg.StateDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return s.unwritable(err)
	}
	for _, f := range []struct{ name, text string }{{"agent.yaml", string(agent)}, {"cluster.yaml", manifests.Cluster(cfg.NodeName, id)}} {
		path := filepath.Join(s.dir, f.name)
		switch err := create(path, f.text); {
		case errors.Is(err, os.ErrExist):
			fmt.Fprintf(s.out, "kept     %s\n", path)
		case err != nil:
			return s.unwritable(err)
		default:
			fmt.Fprintf(s.out, "written  %s\n", path)
		}
	}
	return s.member(filepath.Join(s.dir, "cluster.yaml"), cfg.NodeName, id)
}

// member prints this node's line of cluster.yaml: what the file at path has, or one with a block that is free there.
func (s *starter) member(path, name, id string) error {
	members, err := file.Load(path)
	if err != nil {
		fmt.Fprintf(s.out, "this node in cluster.yaml; choose a block that no other node has (%v):\n%s", err, manifests.Member(name, id, netip.MustParsePrefix("10.244.1.0/24")))
		return nil
	}
	if n, ok := members.Node(name); ok && string(n.PeerID) == id {
		fmt.Fprintf(s.out, "this node is in %s:\n%s", path, manifests.Member(name, id, n.PodCIDRs...))
		return nil
	}
	block, ok := freeBlock(members)
	if !ok {
		return fmt.Errorf("%s: podCIDRs has no IPv4 block of 256 addresses left: add a range, or give this node a smaller block", path)
	}
	fmt.Fprintf(s.out, "add this node to cluster.yaml, on every node and relay; the block is free in %s:\n%s", path, manifests.Member(name, id, block))
	return nil
}

// freeBlock is the first IPv4 /24 of the ranges, after each range's first, that overlaps no node's.
func freeBlock(members mesh.State) (netip.Prefix, bool) {
	const bits = 24
	var ranges, used []netip.Prefix
	for _, r := range members.PodCIDRs {
		if r.Addr().Is4() && r.Bits() < bits {
			ranges, used = append(ranges, r), append(used, netip.PrefixFrom(r.Masked().Addr(), bits))
		}
	}
	for _, n := range members.Nodes {
		used = append(used, n.PodCIDRs...)
	}
	return kube.FreeBlock(ranges, bits, used)
}

// unwritable adds to err what to do about the directory.
func (s *starter) unwritable(err error) error {
	if bad := config.MakeDir("--dir", s.dir, 0o755); bad != nil {
		return cli.Usage(bad)
	}
	return err
}

// agent is a new agent.yaml.
func (s *starter) agent() []byte {
	text := manifests.AgentConfig
	if s.nodeName != "" {
		text += fmt.Sprintf("\nnodeName: %q\n", s.nodeName)
	}
	if s.stateDir != config.DefaultStateDir {
		text += fmt.Sprintf("\nstateDir: %q\n", s.stateDir)
	}
	return []byte(text)
}

// hostName is the name a node has without configuration; "" if the host has none.
func hostName() string {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name
	}
	name, _ := os.Hostname()
	return name
}

// create writes a new file; the error wraps os.ErrExist if there is one.
func create(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(path))
	}
	return nil
}
