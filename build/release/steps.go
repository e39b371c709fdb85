package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"edgemesh/build/programs"
	"edgemesh/manifests"
)

const (
	chartDir = "manifests/edgemesh"
	sumsFile = "SHA256SUMS"
)

// empty removes the results of an earlier build, and nothing else.
func (o options) empty() error {
	files, err := os.ReadDir(o.out)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(files) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	for _, f := range files {
		if !strings.Contains(f.Name(), "edgemesh") && f.Name() != sumsFile && f.Name() != sumsFile+".sig" && f.Name() != imageDigests || f.IsDir() {
			return fmt.Errorf("--out: %s has %s, which is no part of a release: name an empty directory, or remove it", o.out, f.Name())
		}
	}
	return os.RemoveAll(o.out)
}

// build makes all parts, in order of what needs what.
func (o options) build(ctx context.Context) error {
	if err := o.empty(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "edgemesh-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := o.help(ctx, filepath.Join(work, "help")); err != nil {
		return err
	}
	for _, a := range o.arches {
		dir := filepath.Join(work, a.name)
		for part, name := range programs.Names {
			if err := programs.Build(ctx, o.repo, part, a.Platform, o.stamp, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		if err := os.Symlink(filepath.Join(work, "help"), filepath.Join(dir, "help")); err != nil {
			return err
		}
		if err := o.archive(a, dir); err != nil {
			return fmt.Errorf("archive for %s: %w", a.name, err)
		}
		if err := o.packages(a, dir); err != nil {
			return fmt.Errorf("packages for %s: %w", a.name, err)
		}
	}
	if err := o.plugin(ctx, work); err != nil {
		return fmt.Errorf("plugin of kubectl: %w", err)
	}
	if err := o.chart(); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if err := o.manifests(); err != nil {
		return fmt.Errorf("manifests: %w", err)
	}
	if o.images {
		if err := o.buildImages(ctx, work); err != nil {
			return fmt.Errorf("images: %w", err)
		}
	}
	if err := o.contents(work); err != nil {
		return fmt.Errorf("contents: %w", err)
	}
	if err := o.provenance(); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	if err := o.checksums(); err != nil {
		return err
	}
	if err := o.helmProvenance(); err != nil {
		return err
	}
	return o.sign()
}

// commands are the programs that write man pages, and the packages that have them.
var commands = map[string]string{"edgemesh-agent": "edgemesh-agent", "edgemesh-relay": "edgemesh-relay", "edgemesh-cni": "edgemesh-agent"}

// help has each of them write to dir/PACKAGE/man, and those that have them its completions to dir/PACKAGE/completions, under
// the names that shells look for.
func (o options) help(ctx context.Context, dir string) error {
	for part, name := range programs.Names {
		dir, program := filepath.Join(dir, commands[name]), filepath.Join(dir, "bin", name)
		host := programs.Platform{GOARCH: runtime.GOARCH}
		if err := programs.Build(ctx, o.repo, part, host, o.stamp, program); err != nil {
			return err
		}
		if out, err := exec.CommandContext(ctx, program, "man", filepath.Join(dir, "man")).CombinedOutput(); err != nil {
			return fmt.Errorf("%s man: %w: %s", name, err, out)
		}
		if name == "edgemesh-cni" {
			continue // called by programs
		}
		if err := os.Mkdir(filepath.Join(dir, "completions"), 0o755); err != nil {
			return err
		}
		for shell, file := range map[string]string{"bash": name, "zsh": "_" + name, "fish": name + ".fish"} {
			text, err := exec.CommandContext(ctx, program, "completion", shell).Output()
			if err != nil {
				return fmt.Errorf("%s completion %s: %w", name, shell, err)
			}
			if err := os.WriteFile(filepath.Join(dir, "completions", file), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o options) put(name string, data []byte) error {
	fmt.Printf("%-56s %7.1f MB\n", name, float64(len(data))/1e6)
	return os.WriteFile(filepath.Join(o.out, name), data, 0o644)
}

// archive has what a host without a package manager needs.
func (o options) archive(a arch, dir string) error {
	top := fmt.Sprintf("edgemesh_%s_linux_%s", o.number(), a.name)
	f := files{}
	for _, name := range programs.Names {
		if err := f.add(filepath.Join(dir, name), top+"/"+name, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{
		"LICENSE", "README.md", "CHANGELOG.md", "manifests/systemd/edgemesh-agent.service", "manifests/systemd/edgemesh-relay.service",
		"manifests/config/agent.yaml", "manifests/config/cluster.yaml", "manifests/config/relay.yaml",
	} {
		if err := f.add(filepath.Join(o.repo, name), top+"/"+filepath.Base(name), 0o644); err != nil {
			return err
		}
	}
	if err := f.addAll(filepath.Join(o.repo, "docs"), top+"/docs"); err != nil {
		return err
	}
	for _, name := range commands {
		for _, d := range []string{"man", "completions"} {
			if err := f.addAll(filepath.Join(dir, "help", name, d), top+"/"+d); err != nil {
				return err
			}
		}
	}
	data, err := f.tarball(o.stamp.Date)
	if err != nil {
		return err
	}
	return o.put(top+".tar.gz", data)
}

// manifests are the plain ones, with the scripts that apply them.
func (o options) manifests() error {
	top := "edgemesh-manifests-" + o.number()
	f := files{}
	for _, name := range []string{
		"edgemesh.yaml", "edgemesh-relay.yaml", "podnetwork.yaml", "first-steps.sh", "relay-kubeconfig.sh", "cleanup-nodes.sh",
	} {
		mode := os.FileMode(0o644)
		if filepath.Ext(name) == ".sh" {
			mode = 0o755
		}
		if err := f.add(filepath.Join(o.repo, "manifests", name), top+"/"+name, mode); err != nil {
			return err
		}
	}
	for _, dir := range []string{"edge-services", "seccomp", "static-pod", "edgemesh"} { // the chart, which first-steps.sh may install
		if err := f.addAll(filepath.Join(o.repo, "manifests", dir), top+"/"+dir); err != nil {
			return err
		}
	}
	data, err := f.tarball(o.stamp.Date)
	if err != nil {
		return err
	}
	return o.put(top+".tar.gz", data)
}

// buildImages calls the command of `make images`.
func (o options) buildImages(ctx context.Context, work string) error {
	var names []string
	for _, a := range o.arches {
		names = append(names, a.GOARCH)
	}
	dir := filepath.Join(work, "images")
	c := exec.CommandContext(ctx, "go", "run", "./build/images", "--out", dir, "--tag", o.number(),
		"--version", o.stamp.Version, "--commit", o.stamp.Commit, "--arch", strings.Join(names, ","))
	c.Dir, c.Stdout, c.Stderr = o.repo, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", o.stamp.Date.Unix()))
	if err := c.Run(); err != nil {
		return err
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range all {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		name := e.Name()
		if name == "DIGESTS" {
			name = imageDigests
		}
		if err := os.WriteFile(filepath.Join(o.out, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// checksums writes SHA256SUMS, for `sha256sum -c`.
func (o options) checksums() error {
	digests, err := o.digests()
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		fmt.Fprintf(&sums, "%s  %s\n", digests[name], name)
	}
	return o.put(sumsFile, sums.Bytes())
}

// digests are those of all files that were made, by name.
func (o options) digests() (map[string]string, error) {
	all, err := os.ReadDir(o.out)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range all {
		data, err := os.ReadFile(filepath.Join(o.out, e.Name()))
		if err != nil {
			return nil, err
		}
		out[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	return out, nil
}

// unit is a systemd unit for programs in /usr/bin.
func (o options) unit(name string) ([]byte, error) {
	if name == "edgemesh-agent" {
		return []byte(manifests.AgentUnit("/usr")), nil
	}
	text, err := os.ReadFile(filepath.Join(o.repo, "manifests/systemd", name+".service"))
	if err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(text, []byte("/usr/local/bin/"), []byte("/usr/bin/")), nil
}
