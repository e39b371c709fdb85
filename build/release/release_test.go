package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"

	"edgemesh/build/programs"
	"edgemesh/test/tier"
)

// They make releases.
var _ = tier.Package(tier.OfAll)

const repo = "../.."

func draft(t *testing.T) options {
	t.Helper()
	return options{repo: repo, out: t.TempDir(), draft: true, stamp: programs.Stamp{
		Version: "v" + chartVersion(t), Commit: strings.Repeat("c0ffee", 7)[:40], Date: time.Unix(1_700_000_000, 0).UTC(),
	}}
}

// helmTool is the path of Helm, which build/tool.sh builds.
func helmTool(t *testing.T) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "build/tool.sh", "helm")
	c.Dir, c.Stderr = repo, os.Stderr
	out, err := c.Output()
	return strings.TrimSpace(string(out)), err
}

func chartVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repo, chartDir, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\nversion: ")
	version, _, _ := strings.Cut(after, "\n")
	return version
}

// TestCheck: a version that chart and changelog do not have is refused, with what to do.
func TestCheck(t *testing.T) {
	good := draft(t)
	if err := good.check(t.Context()); err != nil {
		t.Errorf("the tree's own version: %v", err)
	}
	for version, want := range map[string]string{"0.2.0": "not of the form v1.2.3", "v0.2": "not of the form", "v99.0.0": "Chart.yaml has no line"} {
		o := good
		o.stamp.Version = version
		if err := o.check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", version, err, want)
		}
	}
}

// TestTarball: what is packed depends on names, content and modes only.
func TestTarball(t *testing.T) {
	at := time.Unix(1_700_000_000, 0).UTC()
	one, err := files{"a/b": {[]byte("x"), 0o755}, "a/a": {[]byte("y"), 0o644}}.tarball(at)
	if err != nil {
		t.Fatal(err)
	}
	two, err := files{"a/a": {[]byte("y"), 0o644}, "a/b": {[]byte("x"), 0o755}}.tarball(at)
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("the same content has two packings (%v)", err)
	}
	other, err := files{"a/a": {[]byte("y"), 0o644}, "a/b": {[]byte("x"), 0o644}}.tarball(at)
	if err != nil || bytes.Equal(one, other) {
		t.Errorf("a mode is not packed (%v)", err)
	}
}

// TestKrew: the manifest names each platform's archive, its digest and program.
func TestKrew(t *testing.T) {
	o := draft(t)
	o.url = "https://example.org/edgemesh/"
	text := string(o.krew([]krewPlatform{{programs.Platform{GOOS: "windows", GOARCH: "amd64"}, "kubectl-edgemesh.exe", "x.tar.gz", "c0ffee"}}))
	for _, want := range []string{
		"kind: Plugin\n", "  name: edgemesh\n", "  version: " + o.stamp.Version + "\n", "matchLabels: {os: windows, arch: amd64}",
		"uri: https://example.org/edgemesh/" + o.stamp.Version + "/x.tar.gz\n", "sha256: c0ffee\n", "bin: kubectl-edgemesh.exe\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("krew's manifest lacks %q:\n%s", want, text)
		}
	}
}

// TestChartAndManifests: Helm reads the chart's archive, and two of them are equal.
func TestChartAndManifests(t *testing.T) {
	sums := map[string]string{}
	for range 2 {
		o := draft(t)
		for _, step := range []func() error{o.chart, o.manifests, o.provenance, o.checksums} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(filepath.Join(o.out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[string(text)] = o.out
	}
	if len(sums) != 1 {
		t.Errorf("two runs differ: %v", sums)
	}
	for _, dir := range sums {
		helm, err := helmTool(t)
		if err != nil {
			t.Skip("NOT TESTED: helm does not build here: ", err)
		}
		out, err := exec.Command(helm, "show", "chart", filepath.Join(dir, "edgemesh-chart-"+chartVersion(t)+".tgz")).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "appVersion: "+chartVersion(t)) {
			t.Errorf("helm show chart: %v: %s", err, out)
		}
		c := exec.Command("sha256sum", "-c", "SHA256SUMS")
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("sha256sum -c: %v: %s", err, out)
		}
	}
}

// TestInventory: each artefact has a document. It lists every module that the linker noted, each program and each Debian
// package once; what has none is an error.
func TestInventory(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	for _, a := range arches {
		for _, name := range programs.Names { // programs like any other
			if err := errors.Join(os.MkdirAll(filepath.Join(work, a.name), 0o755), os.Symlink(self, filepath.Join(work, a.name, name))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, p := range workstations {
		dir := filepath.Join(work, directory(p))
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(self, filepath.Join(dir, pluginOf(p)))); err != nil {
			t.Fatal(err)
		}
	}
	o := draft(t)
	o.arches, o.images = arches, true
	for _, x := range o.artefacts() {
		if err := os.WriteFile(filepath.Join(o.out, x.file), []byte(x.file), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.contents(work); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(o.out)
	if err != nil || len(files) != 2*(3*7+2+len(workstations)+4) {
		t.Errorf("%d files, %v", len(files), err)
	}
	info, err := buildinfo.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Deps) == 0 {
		t.Error("the test's own program has no modules: nothing is tested")
	}
	has := func(file string) map[string]int {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(o.out, file+".spdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := spdxjson.Read(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		have := map[string]int{}
		for _, p := range doc.Packages {
			have[p.PackageName+"@"+p.PackageVersion]++
		}
		if have[file+"@"+o.number()] != 1 {
			t.Errorf("%s does not name itself", file)
		}
		return have
	}
	for file, want := range map[string]map[string]int{
		"edgemesh_" + o.number() + "_linux_armv7.tar.gz":  {"edgemesh-agent": 1, "edgemesh-cni": 1, "edgemesh-relay": 1, "iptables": 0},
		"edgemesh-agent_" + o.number() + "_amd64.deb":     {"edgemesh-agent": 1, "edgemesh-cni": 1, "edgemesh-relay": 0, "iptables": 0},
		"edgemesh-relay-" + o.number() + "-1.aarch64.rpm": {"edgemesh-agent": 0, "edgemesh-cni": 0, "edgemesh-relay": 1, "ca-certificates": 0},
		"edgemesh-agent-linux-arm64.tar":                  {"edgemesh-agent": 1, "iptables": 1, "edgemesh-relay": 0},
		"edgemesh-agent.tar":                              {"edgemesh-agent": 3, "edgemesh-cni": 3, "iptables": 3},
		"edgemesh-relay-linux-arm-v7.tar":                 {"edgemesh-relay": 1, "iptables": 0, "ca-certificates": 1},
	} {
		have := has(file)
		for name, n := range want {
			got := 0
			for key, k := range have {
				if at, _, _ := strings.Cut(key, "@"); at == name {
					got += k
				}
			}
			if got != n {
				t.Errorf("%s: %s is listed %d times, want %d", file, name, got, n)
			}
		}
		for _, d := range info.Deps {
			if have[d.Path+"@"+d.Version] != 1 {
				t.Errorf("%s: %s@%s is listed %d times", file, d.Path, d.Version, have[d.Path+"@"+d.Version])
			}
		}
		if have["stdlib@"+strings.TrimPrefix(runtime.Version(), "go")] != 1 {
			t.Errorf("%s: no stdlib", file)
		}
	}
	has("edgemesh-chart-" + o.number() + ".tgz")
	if err := os.WriteFile(filepath.Join(o.out, "more.zip"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := o.contents(work); err == nil || !strings.Contains(err.Error(), "more.zip") {
		t.Errorf("a file without a document: %v", err)
	}
}

// TestPackages: a Debian package of scripts and configuration, as dpkg reads it; two are equal. The programs are stand-ins.
func TestPackages(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("NOT TESTED: no dpkg-deb")
	}
	var both [2]map[string][]byte
	for i := range both {
		o, dir := draft(t), t.TempDir()
		for _, name := range programs.Names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{"man/edgemesh-agent.1", "completions/edgemesh-agent", "completions/_edgemesh-agent", "completions/edgemesh-agent.fish"} {
			f = filepath.Join(dir, "help/edgemesh-agent", f)
			if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, []byte("help\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.packages(arches[2], dir); err != nil {
			t.Fatal(err)
		}
		all, err := os.ReadDir(o.out)
		if err != nil {
			t.Fatal(err)
		}
		both[i] = map[string][]byte{}
		for _, e := range all {
			if both[i][e.Name()], err = os.ReadFile(filepath.Join(o.out, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		if i == 0 {
			checkDeb(t, filepath.Join(o.out, "edgemesh-agent_"+o.number()+"_armhf.deb"), o.number())
		}
	}
	if len(both[0]) != 4 {
		t.Errorf("%d packages, want two of each kind", len(both[0]))
	}
	for name, data := range both[0] {
		if !bytes.Equal(data, both[1][name]) {
			t.Errorf("%s: two builds differ", name)
		}
	}
}

func checkDeb(t *testing.T, deb, number string) {
	t.Helper()
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--field", deb, "Package", "Version", "Architecture", "Depends"}, []string{"Package: edgemesh-agent", "Version: " + number, "Architecture: armhf", "Depends: iptables"}},
		{[]string{"--contents", deb}, []string{" ./usr/bin/edgemesh-agent", " ./usr/bin/edgemesh-cni", " ./usr/bin/kubectl-edgemesh -> edgemesh-agent", " ./usr/bin/kubectl_complete-edgemesh -> edgemesh-agent", " ./usr/lib/systemd/system/edgemesh-agent.service",
			" ./usr/lib/systemd/network/10-edgemesh.network", " ./usr/lib/NetworkManager/conf.d/10-edgemesh.conf", " ./etc/edgemesh/agent.yaml", "2023-11-14",
			" ./usr/share/man/man1/edgemesh-agent.1", " ./usr/share/bash-completion/completions/edgemesh-agent",
			" ./usr/share/zsh/vendor-completions/_edgemesh-agent", " ./usr/share/fish/vendor_completions.d/edgemesh-agent.fish"}},
		{[]string{"--info", deb, "conffiles"}, []string{"/etc/edgemesh/agent.yaml"}},
		{[]string{"--info", deb, "postrm"}, []string{"purge"}},
		{[]string{"--fsys-tarfile", deb}, []string{"ExecStart=/usr/bin/edgemesh-agent run"}},
	} {
		out, err := exec.Command("dpkg-deb", c.args...).Output()
		for _, want := range c.want {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("dpkg-deb %s: %v: no %q in\n%.2000s", c.args[0], err, want, out)
			}
		}
	}
}

// TestOnlyReleasesAreRemoved: --out is emptied of what a release has, and refused if anything else is there.
func TestOnlyReleasesAreRemoved(t *testing.T) {
	o := options{out: t.TempDir()}
	put := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(o.out, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"SHA256SUMS", "IMAGE-DIGESTS", "edgemesh_1.2.3_linux_amd64.tar.gz", "kubectl-edgemesh.krew.yaml"} {
		put(name)
	}
	if err := o.empty(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		t.Fatal(err)
	}
	put("go.mod")
	if err := o.empty(); err == nil || !strings.Contains(err.Error(), "go.mod") {
		t.Errorf("a directory with go.mod: %v", err)
	}
	if _, err := os.Stat(filepath.Join(o.out, "go.mod")); err != nil {
		t.Error(err)
	}
}
