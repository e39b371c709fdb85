package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// pkg is the part of nfpm's configuration that we set (nfpm.goreleaser.com/configuration).
type pkg struct {
	Name        string            `json:"name"`
	Arch        string            `json:"arch"`
	Version     string            `json:"version"`
	Section     string            `json:"section"`
	Priority    string            `json:"priority"`
	Maintainer  string            `json:"maintainer"`
	Description string            `json:"description"`
	License     string            `json:"license"`
	MTime       string            `json:"mtime"`
	Depends     []string          `json:"depends,omitempty"`
	Suggests    []string          `json:"suggests,omitempty"`
	Contents    []content         `json:"contents"`
	Scripts     map[string]string `json:"scripts"`
	RPM         map[string]any    `json:"rpm"`
	Deb         map[string]any    `json:"deb"`
}

type content struct {
	Source string         `json:"src,omitempty"`
	Dest   string         `json:"dst"`
	Type   string         `json:"type,omitempty"`
	Info   map[string]any `json:"file_info,omitempty"`
	Only   string         `json:"packager,omitempty"` // deb or rpm; both if empty
}

// about are the packages: what differs between them.
var about = []struct {
	name, description string
	programs          []string
	config            string
	depends, suggests []string
}{
	{
		name: "edgemesh-agent", programs: []string{"edgemesh-agent", "edgemesh-cni"}, config: "agent.yaml",
		description: "Pod network agent: pods reach each other by IP wherever their nodes are\n" +
			"The agent carries packets between the pods of all nodes: over the LAN if they\nshare one, otherwise encrypted, " +
			"dialed directly, hole-punched or relayed.\nThe CNI plugin edgemesh-cni is included.",
		depends: []string{"iptables"}, suggests: []string{"containernetworking-plugins"},
	}, {
		name: "edgemesh-relay", programs: []string{"edgemesh-relay"}, config: "relay.yaml",
		description: "Public relay of the EdgeMesh pod network\n" +
			"Nodes behind NATs meet here, and send through it what cannot go directly. It\nsees ciphertext only and serves members only.",
	},
}

// packages makes the Debian and the RPM packages of one architecture from the programs in dir.
func (o options) packages(ctx context.Context, nfpm string, a arch, dir string) error {
	for _, p := range about {
		unit, err := o.unit(p.name)
		if err != nil {
			return err
		}
		unitFile := filepath.Join(dir, p.name+".service")
		if err := os.WriteFile(unitFile, unit, 0o644); err != nil {
			return err
		}
		at := o.stamp.Date.Format(time.RFC3339)
		info := func(mode int) map[string]any { return map[string]any{"mode": mode, "mtime": at} }
		docs := "/usr/share/doc/" + p.name + "/"
		repo, err := filepath.Abs(o.repo)
		if err != nil {
			return err
		}
		c := pkg{
			Name: p.name, Arch: a.nfpm, Version: o.stamp.Version, Section: "net", Priority: "optional", License: "Apache-2.0", MTime: at,
			Maintainer:  "EdgeMesh maintainers <maintainers@edgemesh.invalid>",
			Description: p.description, Depends: p.depends, Suggests: p.suggests,
			Contents: []content{
				{unitFile, "/usr/lib/systemd/system/" + p.name + ".service", "", info(0o644), ""},
				{filepath.Join(repo, "manifests/config", p.config), "/etc/edgemesh/" + p.config, "config|noreplace", info(0o644), ""},
				{filepath.Join(repo, "manifests/config/cluster.yaml"), docs + "cluster.yaml", "", info(0o644), ""},
				{filepath.Join(repo, "LICENSE"), docs + "copyright", "", info(0o644), ""},
				{filepath.Join(repo, "CHANGELOG.md"), docs + "CHANGELOG.md", "", info(0o644), ""},
			},
			Scripts: map[string]string{},
			RPM:     map[string]any{"buildhost": "localhost", "compression": "gzip"},
			Deb:     map[string]any{"compression": "gzip"},
		}
		for _, name := range p.programs {
			c.Contents = append(c.Contents, content{filepath.Join(dir, name), "/usr/bin/" + name, "", info(0o755), ""})
		}
		if p.name == "edgemesh-agent" { // the plugin of kubectl is the agent under another name
			for _, name := range []string{"kubectl-edgemesh", "kubectl_complete-edgemesh"} {
				c.Contents = append(c.Contents, content{"edgemesh-agent", "/usr/bin/" + name, "symlink", info(0o777), ""})
			}
		}
		c.Contents = append(c.Contents, helpFiles(filepath.Join(dir, "help", p.name), info(0o644))...)
		for script, key := range map[string]string{"preinst": "preinstall", "postinst": "postinstall", "prerm": "preremove", "postrm": "postremove"} {
			file, err := o.script(p.name+"."+script+".sh", dir)
			if err != nil {
				return err
			}
			if file != "" {
				c.Scripts[key] = file
			}
		}
		if err := o.nfpm(ctx, nfpm, c, dir); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// script writes one of the packages' scripts, with the version in it, to dir; "" if there is no such file.
func (o options) script(name, dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(o.repo, "build/release/packages", name))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, name)
	return file, os.WriteFile(file, bytes.ReplaceAll(text, []byte("@VERSION@"), []byte(o.number())), 0o644)
}

// helpFiles are a program's man pages and completions, where Debian and Fedora look for them.
func helpFiles(dir string, info map[string]any) []content {
	var out []content
	add := func(pattern, dest, only string) {
		files, _ := filepath.Glob(filepath.Join(dir, pattern)) // sorted; the pattern is good
		for _, f := range files {
			out = append(out, content{Source: f, Dest: dest + filepath.Base(f), Info: info, Only: only})
		}
	}
	add("man/*.1", "/usr/share/man/man1/", "")
	add("completions/"+filepath.Base(dir), "/usr/share/bash-completion/completions/", "")
	add("completions/_*", "/usr/share/zsh/vendor-completions/", "deb")
	add("completions/_*", "/usr/share/zsh/site-functions/", "rpm")
	add("completions/*.fish", "/usr/share/fish/vendor_completions.d/", "")
	return out
}

func (o options) nfpm(ctx context.Context, nfpm string, c pkg, dir string) error {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	conf := filepath.Join(dir, c.Name+".nfpm.yaml")
	if err := os.WriteFile(conf, text, 0o644); err != nil {
		return err
	}
	for _, kind := range []string{"deb", "rpm"} {
		out := filepath.Join(o.out, o.packageFile(kind, c.Name, c.Arch))
		cmd := exec.CommandContext(ctx, nfpm, "package", "--config", conf, "--packager", kind, "--target", out)
		cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", o.stamp.Date.Unix()))
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nfpm: %w: %s", err, strings.TrimSpace(string(said)))
		}
		fmt.Println(filepath.Base(out))
	}
	return nil
}

// packageFile is the name that the packagers themselves would choose.
func (o options) packageFile(kind, name, nfpm string) string {
	if kind == "deb" {
		return fmt.Sprintf("%s_%s_%s.deb", name, o.number(), debianArch(nfpm))
	}
	return fmt.Sprintf("%s-%s-1.%s.rpm", name, o.number(), rpmArch(nfpm))
}

func debianArch(nfpm string) string {
	if nfpm == "arm7" {
		return "armhf"
	}
	return nfpm
}

func rpmArch(nfpm string) string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64", "arm7": "armv7hl"}[nfpm]
}
