package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"

	"edgemesh/build/programs"
)

// krewFile is the manifest of kubectl's plugin, for `kubectl krew install --manifest=FILE`.
const krewFile = "kubectl-edgemesh.krew.yaml"

// workstations are the platforms of those who run kubectl.
var workstations = []programs.Platform{
	{GOOS: "linux", GOARCH: "amd64"}, {GOOS: "linux", GOARCH: "arm64"}, {GOOS: "darwin", GOARCH: "amd64"}, {GOOS: "darwin", GOARCH: "arm64"},
	{GOOS: "windows", GOARCH: "amd64"},
}

// pluginOf is the program on a workstation, directory the one of the working directory that it is built in.
func pluginOf(p programs.Platform) string {
	if p.GOOS == "windows" {
		return "kubectl-edgemesh.exe"
	}
	return "kubectl-edgemesh"
}

func directory(p programs.Platform) string { return p.GOOS + "-" + p.GOARCH }

func (o options) pluginArchive(p programs.Platform) string {
	return fmt.Sprintf("kubectl-edgemesh_%s_%s_%s.tar.gz", o.number(), p.GOOS, p.GOARCH)
}

// plugin builds kubectl's plugin for each workstation, and krew's manifest of them.
func (o options) plugin(ctx context.Context, work string) error {
	var all []krewPlatform
	for _, p := range workstations {
		program := pluginOf(p)
		built := filepath.Join(work, directory(p), program)
		if err := programs.Build(ctx, o.repo, "agent/kubectl-edgemesh", p, o.stamp, built); err != nil {
			return err
		}
		f := files{}
		if err := f.add(built, program, 0o755); err != nil {
			return err
		}
		if err := f.add(filepath.Join(o.repo, "LICENSE"), "LICENSE", 0o644); err != nil {
			return err
		}
		data, err := f.tarball(o.stamp.Date)
		if err != nil {
			return err
		}
		x := krewPlatform{p, program, o.pluginArchive(p), fmt.Sprintf("%x", sha256.Sum256(data))}
		if err := o.put(x.archive, data); err != nil {
			return err
		}
		all = append(all, x)
	}
	return o.put(krewFile, o.krew(all))
}

// krewPlatform is an archive of the plugin.
type krewPlatform struct {
	programs.Platform
	program, archive, sum string
}

// krew is the manifest.
func (o options) krew(all []krewPlatform) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: edgemesh
spec:
  version: %s
  shortDescription: See and check the EdgeMesh pod network
  description: |
    Status of all nodes and of the paths between them, checks of every node with
    what to do, ping, capture and a map, and a test of every pair of nodes.
  platforms:
`, o.stamp.Version)
	for _, p := range all {
		fmt.Fprintf(&b, `  - selector: {matchLabels: {os: %s, arch: %s}}
    uri: %s
    sha256: %s
    bin: %s
    files: [{from: "*", to: "."}]
`, p.GOOS, p.GOARCH, strings.TrimSuffix(o.url, "/")+"/"+o.stamp.Version+"/"+p.archive, p.sum, p.program)
	}
	return b.Bytes()
}
