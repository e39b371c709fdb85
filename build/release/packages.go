package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	content "github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

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
func (o options) packages(a arch, dir string) error {
	for _, p := range about {
		info := nfpm.WithDefaults(&nfpm.Info{
			Name: p.name, Arch: a.nfpm, Version: o.stamp.Version, Section: "net", Priority: "optional", License: "Apache-2.0", MTime: o.stamp.Date,
			Maintainer:  "EdgeMesh maintainers <maintainers@edgemesh.invalid>",
			Description: p.description,
		})
		info.Depends, info.Suggests = p.depends, p.suggests
		info.RPM.BuildHost, info.RPM.Compression, info.Deb.Compression = "localhost", "gzip", "gzip"
		add := func(source, dest, kind string, mode os.FileMode, only string) {
			info.Contents = append(info.Contents, &content.Content{
				Source: source, Destination: dest, Type: kind, Packager: only, FileInfo: &content.ContentFileInfo{Mode: mode, MTime: o.stamp.Date},
			})
		}
		unit, err := o.unit(p.name)
		if err != nil {
			return err
		}
		unitFile, docs := filepath.Join(dir, p.name+".service"), "/usr/share/doc/"+p.name+"/"
		if err := os.WriteFile(unitFile, unit, 0o644); err != nil {
			return err
		}
		add(unitFile, "/usr/lib/systemd/system/"+p.name+".service", "", 0o644, "")
		add(filepath.Join(o.repo, "manifests/config", p.config), "/etc/edgemesh/"+p.config, content.TypeConfigNoReplace, 0o644, "")
		add(filepath.Join(o.repo, "manifests/config/cluster.yaml"), docs+"cluster.yaml", "", 0o644, "")
		add(filepath.Join(o.repo, "LICENSE"), docs+"copyright", "", 0o644, "")
		add(filepath.Join(o.repo, "CHANGELOG.md"), docs+"CHANGELOG.md", "", 0o644, "")
		for _, name := range p.programs {
			add(filepath.Join(dir, name), "/usr/bin/"+name, "", 0o755, "")
		}
		if p.name == "edgemesh-agent" {
			add(filepath.Join(o.repo, "manifests/network/10-edgemesh.network"), "/usr/lib/systemd/network/10-edgemesh.network", "", 0o644, "")
			add(filepath.Join(o.repo, "manifests/network/10-edgemesh.conf"), "/usr/lib/NetworkManager/conf.d/10-edgemesh.conf", "", 0o644, "")
			// The plugin of kubectl is the agent under another name.
			for _, name := range []string{"kubectl-edgemesh", "kubectl_complete-edgemesh"} {
				add("edgemesh-agent", "/usr/bin/"+name, content.TypeSymlink, 0o777, "")
			}
		}
		// Man pages and completions, where Debian and Fedora look for them.
		for _, h := range []struct{ pattern, dest, only string }{
			{"man/*.1", "/usr/share/man/man1/", ""},
			{"completions/" + p.name, "/usr/share/bash-completion/completions/", ""},
			{"completions/_*", "/usr/share/zsh/vendor-completions/", "deb"},
			{"completions/_*", "/usr/share/zsh/site-functions/", "rpm"},
			{"completions/*.fish", "/usr/share/fish/vendor_completions.d/", ""},
		} {
			found, _ := filepath.Glob(filepath.Join(dir, "help", p.name, h.pattern)) // sorted; the pattern is good
			for _, f := range found {
				add(f, h.dest+filepath.Base(f), "", 0o644, h.only)
			}
		}
		for name, script := range map[string]*string{
			"preinst": &info.Scripts.PreInstall, "postinst": &info.Scripts.PostInstall, "prerm": &info.Scripts.PreRemove, "postrm": &info.Scripts.PostRemove,
		} {
			if *script, err = o.script(p.name+"."+name+".sh", dir); err != nil {
				return err
			}
		}
		for _, kind := range []string{"deb", "rpm"} {
			if err := o.pack(kind, info, o.packageFile(kind, p.name, a.nfpm)); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

// pack writes one package.
func (o options) pack(kind string, info *nfpm.Info, name string) error {
	one := *info // what is prepared for one kind is of no use to the other
	if err := nfpm.PrepareForPackager(&one, kind); err != nil {
		return err
	}
	packager, err := nfpm.Get(kind)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := packager.Package(&one, &out); err != nil {
		return err
	}
	return o.put(name, out.Bytes())
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

// packageFile is the name that packagers choose.
func (o options) packageFile(kind, name, arch string) string {
	p, err := nfpm.Get(kind)
	if err != nil {
		panic(err) // deb and rpm are linked in
	}
	return p.ConventionalFileName(nfpm.WithDefaults(&nfpm.Info{Name: name, Arch: arch, Version: o.stamp.Version, Release: map[string]string{"rpm": "1"}[kind]}))
}
