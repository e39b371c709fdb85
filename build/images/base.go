package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// tools are what the agent calls. iptables and ip6tables without a suffix are the
// nft flavour, as in Debian; the agent calls legacy by its full name if the host uses
// that.
var tools = []string{"usr/sbin/xtables-nft-multi", "usr/sbin/xtables-legacy-multi"}

// base is what an image holds besides our binaries.
type base struct {
	tools        tree // programs, their libraries, certificates
	certificates tree
}

// base takes from the extracted packages what the images hold.
func (d debian) base() (base, error) {
	bundle, err := d.certificates()
	if err != nil {
		return base{}, err
	}
	b := base{certificates: tree{"etc/ssl/certs/ca-certificates.crt": {data: bundle, mode: 0o644}}}
	d.copyright(b.certificates, "ca-certificates")
	if b.tools, err = d.closure(); err != nil {
		return base{}, err
	}
	for _, p := range d.packages(b.tools) {
		d.copyright(b.tools, p.name)
	}
	for _, v := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			b.tools.symlink("usr/sbin/"+v+"-nft"+verb, "xtables-nft-multi")
			b.tools.symlink("usr/sbin/"+v+"-legacy"+verb, "xtables-legacy-multi")
			b.tools.symlink("usr/sbin/"+v+verb, "xtables-nft-multi")
		}
	}
	maps.Copy(b.tools, b.certificates)
	return b, nil
}

// certificates concatenates the authorities, as update-ca-certificates does.
func (t tree) certificates() ([]byte, error) {
	var b bytes.Buffer
	for _, p := range slices.Sorted(maps.Keys(t)) {
		if strings.HasPrefix(p, "usr/share/ca-certificates/") && strings.HasSuffix(p, ".crt") {
			b.Write(bytes.TrimSpace(t[p].data))
			b.WriteByte('\n')
		}
	}
	if b.Len() == 0 {
		return nil, errors.New("the package ca-certificates has no certificates")
	}
	return b.Bytes(), nil
}

// copyright copies a package's licence, which must be distributed with it.
func (t tree) copyright(to tree, pkg string) {
	name := "usr/share/doc/" + pkg + "/copyright"
	if e, ok := t[name]; ok && e.link == "" {
		to[name] = e
	}
}

// closure is the programs, iptables' extensions, and the libraries that all these
// need, found as the dynamic loader finds them, so that none is missing in an image.
func (t tree) closure() (tree, error) {
	out := tree{}
	todo := slices.Clone(tools)
	for p := range t {
		if dir := path.Dir(p); path.Base(dir) == "xtables" && strings.HasSuffix(p, ".so") {
			todo = append(todo, p)
		}
	}
	for len(todo) > 0 {
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if _, done := out[name]; done {
			continue
		}
		e, ok := t[name]
		if _, merged := t["usr/"+name]; !ok && merged { // /lib and the like are links, and no package's
			e, ok = entry{link: "/usr/" + name, mode: 0o777}, true
		}
		if !ok {
			return nil, fmt.Errorf("no package has %s", name)
		}
		out[name] = e
		if e.link != "" {
			if !path.IsAbs(e.link) {
				e.link = path.Join(path.Dir(name), e.link)
			}
			todo = append(todo, clean(e.link))
			continue
		}
		more, err := t.needs(name, e.data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		todo = append(todo, more...)
	}
	return out, nil
}

// needs lists the loader and the libraries of an ELF file.
func (t tree) needs(name string, data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader, err := io.ReadAll(p.Open())
		if err != nil {
			return nil, err
		}
		out = append(out, clean(strings.TrimRight(string(loader), "\x00")))
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, so := range libraries {
		p, err := t.library(so)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// library finds a shared object in the directories that the loader searches:
// [/usr]/lib/TRIPLET and /lib.
func (t tree) library(so string) (string, error) {
	for p := range t {
		dir := strings.TrimPrefix(path.Dir(p), "usr/")
		if path.Base(p) == so && (dir == "lib" || path.Dir(dir) == "lib") {
			return p, nil
		}
	}
	return "", fmt.Errorf("no package has the library %s", so)
}
