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

// imageDigests has the images' digests, for those who pull them.
const imageDigests = "IMAGE-DIGESTS"

// artefact is a file of the release, and what is in it.
type artefact struct {
	file     string
	purpose  string // as SPDX 2.3, 7.24, calls it
	arches   []arch
	programs []string
	image    string // whose Debian packages it has; "" has none
}

// artefacts are all files that have a document of their own.
func (o options) artefacts() (out []artefact) {
	all := slices.Sorted(maps.Values(programs.Names))
	for _, a := range o.arches {
		out = append(out, artefact{fmt.Sprintf("edgemesh_%s_linux_%s.tar.gz", o.number(), a.name), "ARCHIVE", []arch{a}, all, ""})
		for _, p := range about {
			for _, kind := range []string{"deb", "rpm"} {
				out = append(out, artefact{o.packageFile(kind, p.name, a.nfpm), "INSTALL", []arch{a}, p.programs, ""})
			}
			if o.images {
				platform := a.GOARCH
				if a.GOARM != "" {
					platform += "-v" + a.GOARM
				}
				out = append(out, artefact{p.name + "-linux-" + platform + ".tar", "CONTAINER", []arch{a}, p.programs, p.name})
			}
		}
	}
	for _, p := range about {
		if o.images && len(o.arches) > 1 {
			out = append(out, artefact{p.name + ".tar", "CONTAINER", o.arches, p.programs, p.name})
		}
	}
	for _, p := range workstations {
		out = append(out, artefact{o.pluginArchive(p), "ARCHIVE", []arch{{name: directory(p)}}, []string{pluginOf(p)}, ""})
	}
	for _, name := range []string{krewFile, "edgemesh-chart-" + o.number() + ".tgz", "edgemesh-chart-" + o.number() + ".oci.tar", "edgemesh-manifests-" + o.number() + ".tar.gz"} {
		out = append(out, artefact{name, "ARCHIVE", nil, nil, ""})
	}
	return out
}

// contents writes the SPDX document of each artefact, as FILE.spdx.json: its programs, the modules that the linker noted in
// them, and the Debian packages of an image. The programs are in directories of work, by the architecture's name.
func (o options) contents(work string) error {
	has := map[string]bool{}
	for _, x := range o.artefacts() {
		doc, err := o.document(x, work)
		if err != nil {
			return fmt.Errorf("%s: %w", x.file, err)
		}
		var out bytes.Buffer
		if err := spdxjson.Write(doc, &out, spdxjson.Indent("  ")); err != nil {
			return err
		}
		if err := o.put(x.file+".spdx.json", out.Bytes()); err != nil {
			return err
		}
		has[x.file] = true
	}
	files, err := os.ReadDir(o.out)
	if err != nil {
		return err
	}
	for _, f := range files {
		if name := f.Name(); !has[name] && !strings.HasSuffix(name, ".spdx.json") && name != imageDigests {
			return fmt.Errorf("%s: nothing says what is in it", name)
		}
	}
	return nil
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

func (o options) document(x artefact, work string) (*spdx.Document, error) {
	v := inventory{parts: map[string]*spdx.Package{}, Document: &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: x.file,
		// Unique by the commit; no server need have it (SPDX 2.3, 6.5).
		DocumentNamespace: fmt.Sprintf("https://edgemesh.invalid/spdx/%s/%s", o.stamp.Commit, x.file),
		CreationInfo: &spdx.CreationInfo{
			Created:  o.stamp.Date.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "edgemesh-build-release-" + o.number()}},
		},
	}}
	data, err := os.ReadFile(filepath.Join(o.out, x.file))
	if err != nil {
		return nil, err
	}
	whole := v.part("Artefact", x.file, o.number(), "")
	whole.PrimaryPackagePurpose, whole.PackageFileName, whole.PackageLicenseDeclared = x.purpose, x.file, "Apache-2.0"
	whole.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", sha256.Sum256(data))}}
	if x.image == "edgemesh-agent" {
		whole.PackageLicenseDeclared = "NOASSERTION" // Debian's packages have theirs
	}
	v.relate(v.SPDXIdentifier, "DESCRIBES", whole)
	lock, err := os.ReadFile(filepath.Join(o.repo, "build/images/packages.lock"))
	if err != nil {
		return nil, err
	}
	for _, a := range x.arches {
		for _, program := range x.programs {
			p, err := v.program(a, filepath.Join(work, a.name, program), o.stamp.Version)
			if err != nil {
				return nil, err
			}
			v.relate(whole.PackageSPDXIdentifier, "CONTAINS", p)
		}
		for line := range strings.Lines(string(lock)) {
			// ARCH NAME VERSION SHA256
			f := strings.Fields(line)
			if x.image == "" || len(f) != 4 || f[0] != a.debian || x.image == "edgemesh-relay" && f[1] != "ca-certificates" {
				continue
			}
			d := v.part("Debian-"+f[0], f[1], f[2], fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", f[1], f[2], f[0]))
			d.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: f[3]}}
			v.relate(whole.PackageSPDXIdentifier, "CONTAINS", d)
		}
	}
	return v.Document, nil
}

// program adds a program and the modules that the linker noted in it.
func (v inventory) program(a arch, path, version string) (*spdx.Package, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	p := v.part("Program-"+a.name, filepath.Base(path), version, "")
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
