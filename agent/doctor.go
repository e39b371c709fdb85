package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"edgemesh/agent/bundle"
	"edgemesh/agent/cniconf"
	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/view"
	"edgemesh/internal/cli"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/config"
	"edgemesh/internal/screen"
	"edgemesh/internal/version"
)

// doctorCommand is one call of doctor.
type doctorCommand struct {
	clientFlags
	to     string
	bundle string
	config string

	verbose bool
}

func newDoctor() *cobra.Command {
	var d doctorCommand
	c := &cobra.Command{
		Use:   "doctor [NODE|POD-IP]",
		Short: "Check this node: what is broken, why, and what to do about it",
		Long: `Check this node: key, membership, relays (dialed now), TUN, routes, forwarding,
firewall and peers. Exits with 0 if traffic flows (warnings are allowed) and with 1 if
something is broken.

Given a pod's IP, or a node, follow a packet there step by step: who owns the address,
policy, route, path and why it is not better, the agent there, counters, the node's own
address, the pod. The first step that is broken is the cause.

--bundle writes what support needs to a file: status, findings and configuration. Of a
configuration it has the values of keys that the agent knows; passwords, tokens and keys
are removed everywhere. It also has rules, routes, firewall and metrics, and the log where
journald has it. It lists what is in it before it writes; with - it writes to standard
output, and everything else to standard error.`,
		Example: `  edgemesh-agent doctor
  edgemesh-agent doctor 10.244.2.7
  edgemesh-agent doctor --json | jq '.[] | select(.severity!="ok")'
  edgemesh-agent doctor --bundle /tmp/edgemesh.tar.gz`,
		Args: cli.Optional("NODE|POD-IP"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				d.to = args[0]
			}
			return d.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	d.add(c)
	c.Flags().BoolVarP(&d.verbose, "verbose", "v", false, "list the checks that are well, and those that were skipped")
	c.Flags().StringVar(&d.bundle, "bundle", "", "write what support needs to this file (.tar.gz), without secrets; - is standard output")
	c.Flags().StringVar(&d.config, "config", config.DefaultPath, "the agent's configuration, for --bundle")
	c.ValidArgsFunction = completeNodes(&d.clientFlags)
	return c
}

func (d *doctorCommand) run(ctx context.Context, out, stderr io.Writer) error {
	w := out
	if d.bundle == "-" {
		w = stderr
	}
	query := d.client().Doctor
	if d.to != "" {
		query = func(ctx context.Context) ([]findings.Finding, error) { return d.client().Explain(ctx, d.to) }
	}
	found, err := query(ctx)
	if errors.Is(err, control.ErrNotRunning) || errors.Is(err, control.ErrSilent) {
		found, err = []findings.Finding{notRunning(err)}, nil // a bundle is wanted all the more
	}
	if err != nil {
		return err
	}
	if d.json {
		err = cli.JSON(w, found)
	} else {
		view.Doctor(w, screen.Of(w), found, d.verbose || d.to != "")
	}
	if err == nil && d.bundle != "" {
		said := w
		if d.json {
			said = stderr // only JSON there
		}
		err = d.write(ctx, out, said, found)
	}
	if err != nil {
		return err
	}
	return reported(found)
}

// write makes the bundle, and lists it on w first.
func (d *doctorCommand) write(ctx context.Context, out, w io.Writer, found []findings.Finding) error {
	var b bundle.Bundle
	b.JSON("findings.json", found)
	if st, err := d.client().Status(ctx); err == nil {
		b.JSON("status.json", st)
	}
	b.Text("version.txt", version.Number()+"\n")
	b.Config("agent.yaml", d.config)
	cfg, err := config.Load(d.config)
	if err != nil { // refused; the usual places may have something all the same
		cfg = config.Config{StateDir: config.DefaultStateDir, CNIConfDir: config.DefaultCNIConfDir, MetricsAddress: config.DefaultMetricsAddress}
	}
	b.Config(config.HostFile, filepath.Join(cfg.StateDir, config.HostFile))
	if cfg.Membership.File != "" {
		b.Config("cluster.yaml", cfg.Membership.File)
	}
	b.Config("conflist.json", filepath.Join(cfg.CNIConfDir, cniconf.ConflistName))
	b.Config("subnet.json", filepath.Join(d.runtimeDir, conf.SubnetFile))
	b.File("agent.failed", filepath.Join(d.runtimeDir, control.FailureFile))
	for _, name := range []string{"/proc/version", "/proc/net/route", "/proc/net/ipv6_route", "/proc/net/dev"} {
		b.File("host"+name, name)
	}
	b.Host(ctx)
	b.Metrics(ctx, cfg.MetricsAddress)
	for _, line := range b.List() {
		fmt.Fprintln(w, line)
	}
	if d.bundle == "-" {
		return b.Archive(out)
	}
	if err := b.Write(d.bundle); err != nil {
		return fmt.Errorf("--bundle %s: %w", d.bundle, err)
	}
	_, err = fmt.Fprintln(w, "written to "+d.bundle)
	return err
}

// notRunning is what doctor says of an agent that does not run, or hangs.
func notRunning(err error) findings.Finding {
	remedy := "start the agent; if it does not stay up, the end of its log names the cause: " + findings.Log
	if errors.Is(err, control.ErrSilent) {
		remedy = "restart the agent; the end of its log may name the cause: " + findings.Log
	}
	return findings.Brokenf("agent", remedy, "%v", err)
}

// reported fails where something is broken.
func reported(found []findings.Finding) error {
	if findings.Has(found, findings.Broken) {
		return cli.ErrReported
	}
	return nil
}
