package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"

	"edgemesh/build/programs"
)

// contents writes the SPDX document of one architecture: each program, the modules that the linker noted in it, and the
// Debian packages in the images.
func (o options) contents(a arch, dir string) error {
	doc, err := o.document(a, dir)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := spdxjson.Write(doc, &out, spdxjson.Indent("  ")); err != nil {
		return err
	}
	return o.put(fmt.Sprintf("edgemesh_%s_linux_%s.spdx.json", o.number(), a.name), out.Bytes())
}

// inventory is a document with its parts by identifier, each once.
type inventory struct {
	*spdx.Document
	parts map[string]*spdx.Package
}

// part is the element of that kind and name; a new one knows no licence.
func (v inventory) part(kind, name, version, purl string) *spdx.Package {
	id := kind + "-" + regexp.MustCompile(`[^A-Za-z0-9.-]+`).ReplaceAllString(name+"-"+version, "-")
	if p := v.parts[id]; p != nil {
		return p
	}
	p := &spdx.Package{
		PackageName: name, PackageSPDXIdentifier: common.ElementID(id), PackageVersion: version,
		PackageDownloadLocation: "NOASSERTION", PackageLicenseConcluded: "NOASSERTION",
		PackageLicenseDeclared: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
	}
	if purl != "" {
		p.PackageExternalReferences = []*spdx.PackageExternalReference{{Category: "PACKAGE-MANAGER", RefType: "purl", Locator: purl}}
	}
	v.parts[id] = p
	v.Packages = append(v.Packages, p)
	return p
}

func (v inventory) relate(a common.ElementID, kind string, b *spdx.Package) {
	v.Relationships = append(v.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b.PackageSPDXIdentifier)), Relationship: kind,
	})
}

func (o options) document(a arch, dir string) (*spdx.Document, error) {
	name := fmt.Sprintf("edgemesh_%s_linux_%s", o.number(), a.name)
	v := inventory{parts: map[string]*spdx.Package{}, Document: &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		// Unique by the commit; no server need have it (SPDX 2.3, 6.5).
		DocumentNamespace: fmt.Sprintf("https://edgemesh.invalid/spdx/%s/%s", o.stamp.Commit, name),
		CreationInfo: &spdx.CreationInfo{
			Created:  o.stamp.Date.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "edgemesh-build-release-" + o.number()}},
		},
	}}
	image := map[string]*spdx.Package{}
	for _, p := range about {
		image[p.name] = v.part("Image", p.name, o.number(), "")
		image[p.name].PrimaryPackagePurpose = "CONTAINER"
		v.relate(v.SPDXIdentifier, "DESCRIBES", image[p.name])
	}
	for _, program := range slices.Sorted(maps.Values(programs.Names)) {
		p, err := v.program(filepath.Join(dir, program), o.stamp.Version)
		if err != nil {
			return nil, err
		}
		v.relate(v.SPDXIdentifier, "DESCRIBES", p)
		v.relate(image[commands[program]].PackageSPDXIdentifier, "CONTAINS", p)
	}
	lock, err := os.ReadFile(filepath.Join(o.repo, "build/images/packages.lock"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(lock)) {
		// ARCH NAME VERSION SHA256
		if f := strings.Fields(line); len(f) == 4 && f[0] == debianArch(a.nfpm) {
			d := v.part("Debian", f[1], f[2], fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", f[1], f[2], f[0]))
			d.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: f[3]}}
			v.relate(image["edgemesh-agent"].PackageSPDXIdentifier, "CONTAINS", d)
			if f[1] == "ca-certificates" {
				v.relate(image["edgemesh-relay"].PackageSPDXIdentifier, "CONTAINS", d)
			}
		}
	}
	return v.Document, nil
}

// program adds a program and the modules that the linker noted in it.
func (v inventory) program(path, version string) (*spdx.Package, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	p := v.part("Program", filepath.Base(path), version, "")
	p.PrimaryPackagePurpose, p.PackageLicenseDeclared = "APPLICATION", "Apache-2.0"
	p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", sha256.Sum256(data))}}
	std := strings.TrimPrefix(info.GoVersion, "go")
	v.relate(p.PackageSPDXIdentifier, "DEPENDS_ON", v.part("Module", "stdlib", std, "pkg:golang/stdlib@"+std))
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		v.relate(p.PackageSPDXIdentifier, "DEPENDS_ON", v.part("Module", d.Path, d.Version, "pkg:golang/"+d.Path+"@"+d.Version))
	}
	return p, nil
}
