package main

import (
	"github.com/spf13/cobra"

	"edgemesh/agent/control"
	"edgemesh/internal/cni/conf"
)

// clientFlags are shared by the commands that query a running agent.
type clientFlags struct {
	runtimeDir string
	json       bool
}

func (f *clientFlags) add(c *cobra.Command) {
	f.addDir(c)
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
}

func (f *clientFlags) addDir(c *cobra.Command) {
	c.Flags().StringVar(&f.runtimeDir, "runtime-dir", conf.DefaultRuntimeDir, "runtime directory of the agent")
}

func (f *clientFlags) client() *control.Client { return control.NewClient(f.runtimeDir) }
