package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"edgemesh/agent/cniconf"
)

// The init container's command installs the plugin that is beside the agent, where the agent is to have one, and removes it.
func TestPlugin(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(self), cniconf.PluginName)
	if err := os.WriteFile(beside, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(beside) })
	dir := t.TempDir()
	plugin := filepath.Join(dir, "bin", cniconf.PluginName)
	run := func(mode string, args ...string) error {
		t.Helper()
		conf := filepath.Join(dir, "agent.yaml")
		text := fmt.Sprintf("nodeName: a\ncniMode: %s\ncniBinDir: %s\nmembership: {file: /etc/edgemesh/cluster.yaml}\n", mode, filepath.Dir(plugin))
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := newRoot()
		c.SetArgs(append([]string{"plugin", "--config", conf}, args...))
		return c.Execute()
	}
	if err := run("keep"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(plugin); err == nil {
		t.Error("installed where another plugin has the pods")
	}
	for range 2 {
		if err := run("own"); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(plugin); err != nil || info.Mode() != 0o755 {
			t.Fatalf("%v, %v", info, err)
		}
	}
	if err := run("own", "--remove"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(plugin); err == nil {
		t.Error("it is still there")
	}
}
