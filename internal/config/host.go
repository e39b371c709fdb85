package config

import (
	"errors"
	"io/fs"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"edgemesh/internal/config/strict"
	"edgemesh/internal/membership/mesh"
)

// HostFile, in stateDir, holds the settings of one host whose agent.yaml is shared with others, as in a DaemonSet: the keys
// of `nodes.NAME`. They go before those.
const HostFile = "node.yaml"

// withHost is c, which was read from data, with the settings of this host. The error is a *mesh.Invalid that names the
// host's file.
func (c Config) withHost(data []byte) (Config, error) {
	path := filepath.Join(c.StateDir, HostFile)
	text, err := strict.ReadFile(path, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	bad := mesh.Invalid{File: path}
	if err != nil {
		bad.Addf("", "%v", err)
		return c, bad.Err()
	}
	var tree, host map[string]any
	strict.Unmarshal(text, new(nodeDocument), &bad)
	if err := errors.Join(bad.Err(), yaml.Unmarshal(data, &tree), yaml.Unmarshal(text, &host)); err != nil {
		return c, err //nolint:wrapcheck // a *mesh.Invalid; both texts were read before
	}
	merged, err := overlaid(tree, overlay(c.own, host))
	if err != nil {
		bad.Addf("", "%v", err)
		return c, bad.Err()
	}
	out := merged.check(&bad)
	out.NodeName, out.HostNamed, out.own, out.host, out.path, out.data = c.NodeName, c.HostNamed, c.own, host, c.path, c.data
	return out, bad.Err()
}
