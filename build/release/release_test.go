// Package release tests what release.sh builds, and the dashboards that a release has.
package release

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"edgemesh/test/tier"
)

// They make releases.
var _ = tier.Package(tier.OfAll)

const repo = "../.."

// sh runs a command, and returns what it prints; its error has what it complains of, too.
func sh(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Env = append(os.Environ(), env...)
	var bad strings.Builder
	c.Stderr = &bad
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s%s", name, err, out, &bad)
	}
	return string(out), err
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t *testing.T, text string, parts ...string) string {
	t.Helper()
	file := filepath.Join(parts...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	return file
}

func version(t *testing.T) string {
	t.Helper()
	return regexp.MustCompile(`(?m)^version: (.*)$`).FindStringSubmatch(read(t, repo, "manifests/edgemesh/Chart.yaml"))[1]
}

// TestCheck: what the tree does not say of a version, figures of an earlier one, and keys that sign nothing are refused, with what to do.
func TestCheck(t *testing.T) {
	const good = "0.10.0"
	for name, x := range map[string]struct{ version, day, measured, env, addresses, want string }{
		"no v":            {version: "0.10.0", want: "not of the form v1.2.3"},
		"other version":   {version: "v99.0.0", want: "Chart.yaml has no line 'version: 99.0.0'"},
		"undated":         {day: "unreleased", want: "is dated 'unreleased'"},
		"older figures":   {measured: "0.9.12", want: "figures of version '0.9.12', older than 0.10.0: run `make bench`"},
		"no figures":      {measured: "unknown", want: "figures of version ''"},
		"newer figures":   {measured: "1.0.0", want: "KEY: a release is signed"},
		"no registry":     {addresses: "REGISTRY=localhost", want: "REGISTRY is 'localhost', which nobody reaches"},
		"no maintainer":   {addresses: "MAINTAINER='x <x@x.invalid>'", want: "MAINTAINER is"},
		"no server":       {env: "URL=https://localhost/edgemesh", want: "URL is 'https://localhost/edgemesh'"},
		"no fingerprint":  {env: "KEY=" + key(t, "-algorithm", "ed25519"), want: "SECURITY.md does not name the signing key"},
		"not signed":      {want: "KEY: a release is signed"},
		"no key":          {env: "KEY=/dev/null", want: "openssl genpkey"},
		"no PGP key":      {env: "PGPKEY=/dev/null", want: "gpg --export-secret-keys"},
		"another's files": {env: "DRAFT=1", want: "not a git repository"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			or := func(s, d string) string {
				if s == "" {
					return d
				}
				return s
			}
			script := write(t, read(t, "release.sh"), dir, "build/release/release.sh")
			write(t, "REGISTRY=r.edgemesh.org\nCHART=oci://r.edgemesh.org/charts\nURL=https://edgemesh.org\nMAINTAINER=x@edgemesh.org\n"+x.addresses+"\n", dir, "build/release/addresses")
			write(t, "none\n", dir, "SECURITY.md")
			write(t, "version: "+good+"\nappVersion: \""+good+"\"\n", dir, "manifests/edgemesh/Chart.yaml")
			write(t, "## ["+good+"] - "+or(x.day, "2026-11-20")+"\n", dir, "CHANGELOG.md")
			write(t, "Measured on version "+or(x.measured, good)+" at commit c0ffee, 2026-11-20.\n", dir, "docs/performance.md")
			if _, err := sh(t, []string{"VERSION=" + or(x.version, "v"+good), x.env, "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir)}, script); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v, want %q", err, x.want)
			}
		})
	}
	if !regexp.MustCompile(`(?m)^Measured on version [0-9.]+ at commit `).MatchString(read(t, repo, "docs/performance.md")) {
		t.Error("docs/performance.md: no version of its figures: run make bench-page")
	}
}

// TestOnlyReleasesAreRemoved: OUT is emptied of a release, and refused if anything else is there.
func TestOnlyReleasesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	file := write(t, "", dir, "go.mod")
	if _, err := sh(t, []string{"DRAFT=1", "VERSION=v" + version(t), "OUT=" + dir}, "./release.sh"); err == nil || !strings.Contains(err.Error(), "is no release") {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// TestFailed: the chart has the changes that are below headings, a version without any is refused, and a release that fails leaves
// nothing.
func TestFailed(t *testing.T) {
	for changes, want := range map[string]string{
		"- before\n  more\n\n### Added\n\n- one\n  more\n": "changes: |\n    - {kind: added, description: \"one more\"}\nend",
		"- before\n  more\n": "no item below a heading",
	} {
		dir, out, tmp := t.TempDir(), t.TempDir(), t.TempDir()
		script := write(t, read(t, "release.sh"), dir, "build/release/release.sh")
		write(t, read(t, "addresses"), dir, "build/release/addresses")
		write(t, "#!/bin/sh\n", dir, "build/tool.sh")
		write(t, "#!/bin/sh\ncat $1/edgemesh/Chart.yaml >&2; echo end >&2; exit 1\n", dir, "build/tar.sh")
		write(t, "version: 0.1.0\nappVersion: \"0.1.0\"\nannotations:\n", dir, "manifests/edgemesh/Chart.yaml")
		write(t, "## [0.1.0] - unreleased\n\n"+changes+"\n## [0.0.1] - 2026-11-20\n\n### Fixed\n\n- other\n", dir, "CHANGELOG.md")
		for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=test", "-c", "user.email=test@edgemesh.invalid", "commit", "-q", "--allow-empty", "-m", "test"}} {
			if _, err := sh(t, nil, "git", append([]string{"-C", dir}, args...)...); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := sh(t, []string{"DRAFT=1", "VERSION=v0.1.0", "OUT=" + out + "/release", "TMPDIR=" + tmp}, script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		for _, d := range []string{out, tmp} {
			if left, err := os.ReadDir(d); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		}
	}
}

// draft makes a release for this machine, without images.
func draft(t *testing.T, env ...string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "release")
	arch := runtime.GOARCH
	if _, err := sh(t, append(env, "DRAFT=1", "VERSION=v"+version(t), "OUT="+dir, "ARCHES="+arch, "WORKSTATIONS=linux/"+arch, "IMAGES=no", "URL=https://example.org/edgemesh/"), "./release.sh"); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRelease: two are equal, and others' programs read what is in them.
func TestRelease(t *testing.T) {
	for _, program := range []string{"openssl", "gpg", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("NOT TESTED: no ", program)
		}
	}
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skipf("NOT TESTED on %s", runtime.GOARCH)
	}
	dir := draft(t, "KEY="+key(t, "-algorithm", "ed25519"), "PGPKEY="+pgpKey(t, "rsa2048"))
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, key(t, "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"))
	if err != nil {
		t.Fatal(err)
	}
	second := draft(t, "KEY="+relative)
	sums := read(t, dir, "SHA256SUMS")
	if other := read(t, second, "SHA256SUMS"); sums != other || strings.Count(sums, "\n") < 12 {
		t.Errorf("two releases differ:\n%s%s", sums, other)
	}
	if _, err := sh(t, nil, "env", "-C", dir, "sha256sum", "-c", "SHA256SUMS"); err != nil {
		t.Error(err)
	}
	t.Run("signatures", func(t *testing.T) { signatures(t, dir); signatures(t, second) })
	t.Run("chart", func(t *testing.T) { chart(t, dir) })
	t.Run("package", func(t *testing.T) { deb(t, dir) })
	t.Run("contents", func(t *testing.T) { contents(t, dir) })
	t.Run("krew", func(t *testing.T) { krew(t, dir, sums) })
}

// TestToolPath: whatever Go says while it fetches and builds a tool, the path alone is printed.
func TestToolPath(t *testing.T) {
	dir := t.TempDir()
	write(t, "#!/bin/sh\necho compiling\necho go: downloading helm >&2\ntouch $GOBIN/helm\nchmod +x $GOBIN/helm\n", dir, "bin/go")
	for _, built := range []string{"at first", "once built"} {
		out, err := sh(t, []string{"PATH=" + dir + "/bin:" + os.Getenv("PATH"), "EDGEMESH_TOOLS=" + dir + "/tools"}, repo+"/build/tool.sh", "helm")
		if err != nil || filepath.Dir(filepath.Dir(out)) != dir+"/tools" || !strings.HasSuffix(out, "/helm\n") {
			t.Errorf("%s: %q, %v", built, out, err)
		}
	}
}

// signatures: openssl verifies those of checksums and provenance, and no other file's.
func signatures(t *testing.T, dir string) {
	number := version(t)
	verify := func(data, sig string) error {
		t.Helper()
		raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(sig))
		if err != nil {
			t.Fatal(err)
		}
		tmp := t.TempDir()
		_, err = sh(t, nil, "openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", filepath.Join(dir, "edgemesh_"+number+".pub"),
			"-in", write(t, data, tmp, "data"), "-sigfile", write(t, string(raw), tmp, "sig"))
		return err
	}
	sums, sig := read(t, dir, "SHA256SUMS"), read(t, dir, "SHA256SUMS.sig")
	if err := verify(sums, sig); err != nil {
		t.Error(err)
	}
	if verify(sums+" ", sig) == nil {
		t.Error("other data is verified")
	}
	var envelope struct {
		PayloadType, Payload string
		Signatures           []struct{ Sig string }
	}
	if err := json.Unmarshal([]byte(read(t, dir, "edgemesh_"+number+".intoto.jsonl")), &envelope); err != nil || len(envelope.Signatures) != 1 {
		t.Fatalf("%+v, %v", envelope, err)
	}
	payload, err := base64.StdEncoding.DecodeString(envelope.Payload)
	if err != nil || string(payload) != read(t, dir, "edgemesh_"+number+".provenance.json") {
		t.Errorf("the envelope has not the provenance (%v)", err)
	}
	if err := verify(fmt.Sprintf("DSSEv1 %d %s %d %s", len(envelope.PayloadType), envelope.PayloadType, len(payload), payload), envelope.Signatures[0].Sig); err != nil {
		t.Error(err)
	}
	var statement struct{ Subject []struct{ Name string } }
	if err := json.Unmarshal(payload, &statement); err != nil || len(statement.Subject) != strings.Count(sums, "\n")-1 { // all but itself
		t.Errorf("%d files have a provenance, %v", len(statement.Subject), err)
	}
}

// chart: Helm verifies it by its .prov file, and refuses another one; it has what Artifact Hub reads.
func chart(t *testing.T, dir string) {
	helm, err := sh(t, nil, repo+"/build/tool.sh", "helm")
	if err != nil {
		t.Skip("NOT TESTED: helm does not build here: ", err)
	}
	helm = strings.TrimSpace(helm)
	file := filepath.Join(dir, "edgemesh-chart-"+version(t)+".tgz")
	verify := func() (string, error) {
		return sh(t, nil, helm, "verify", "--keyring", filepath.Join(dir, "edgemesh_"+version(t)+".gpg"), file)
	}
	if out, err := verify(); err != nil || !strings.Contains(out, "rsa2048@edgemesh.invalid") {
		t.Errorf("%v: %s", err, out)
	}
	out, err := sh(t, nil, helm, "show", "chart", file)
	var meta struct {
		AppVersion, Icon string
		Annotations      map[string]string
	}
	if err := errors.Join(err, yaml.Unmarshal([]byte(out), &meta)); err != nil || meta.AppVersion != version(t) {
		t.Errorf("%v: %s", err, out)
	}
	if icon := read(t, repo, "manifests/icon.svg"); meta.Icon != "data:image/svg+xml;base64,"+base64.StdEncoding.EncodeToString([]byte(icon)) {
		t.Error("Chart.yaml has not manifests/icon.svg")
	}
	// As Artifact Hub parses them (artifacthub.io/docs/topics/annotations/helm).
	kinds := map[string]bool{"added": true, "changed": true, "deprecated": true, "removed": true, "fixed": true, "security": true}
	for key, wants := range map[string][]string{
		"changes": {"kind", "description"}, "images": {"name", "image"}, "crds": {"kind", "version", "name", "displayName", "description"},
	} {
		var list []map[string]string
		if err := yaml.Unmarshal([]byte(meta.Annotations["artifacthub.io/"+key]), &list); err != nil || len(list) < 2 {
			t.Errorf("%s: %v, %v", key, list, err)
		}
		for _, item := range list {
			for _, want := range wants {
				if item[want] == "" {
					t.Errorf("%s: %v has no %s", key, item, want)
				}
			}
			if key == "changes" && !kinds[item["kind"]] {
				t.Errorf("%v: a kind that Artifact Hub does not know", item)
			}
		}
	}
	write(t, read(t, file)+"\x00", file)
	if out, err := verify(); err == nil {
		t.Errorf("helm verify takes another chart: %s", out)
	}
}

// deb: dpkg reads the agent's package.
func deb(t *testing.T, dir string) {
	file := filepath.Join(dir, "edgemesh-agent_"+version(t)+"_"+runtime.GOARCH+".deb")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--field", file, "Package", "Version", "Architecture", "Depends", "Maintainer"}, []string{"Package: edgemesh-agent", "Maintainer: EdgeMesh maintainers <", "Version: " + version(t), "Architecture: " + runtime.GOARCH, "Depends: iptables"}},
		{[]string{"--contents", file}, []string{" ./usr/bin/edgemesh-agent", " ./usr/bin/edgemesh-cni", " ./usr/bin/kubectl-edgemesh -> edgemesh-agent", " ./usr/bin/kubectl_complete-edgemesh -> edgemesh-agent", " ./usr/lib/systemd/system/edgemesh-agent.service",
			" ./usr/lib/systemd/network/10-edgemesh.network", " ./usr/lib/NetworkManager/conf.d/10-edgemesh.conf", " ./etc/edgemesh/agent.yaml",
			" ./usr/share/man/man1/edgemesh-agent.1", " ./usr/share/man/man1/edgemesh-cni.1", " ./usr/share/bash-completion/completions/edgemesh-agent",
			" ./usr/share/zsh/vendor-completions/_edgemesh-agent", " ./usr/share/fish/vendor_completions.d/edgemesh-agent.fish"}},
		{[]string{"--info", file, "conffiles"}, []string{"/etc/edgemesh/agent.yaml"}},
		{[]string{"--info", file, "preinst"}, []string{"own=" + version(t)}},
		{[]string{"--info", file, "postrm"}, []string{"purge"}},
		{[]string{"--fsys-tarfile", file}, []string{"ExecStart=/usr/bin/edgemesh-agent run"}},
	} {
		out, err := exec.Command("dpkg-deb", c.args...).Output()
		for _, want := range c.want {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("dpkg-deb %s: %v: no %q in\n%.2000s", c.args[0], err, want, out)
			}
		}
	}
}

// contents: each program's list has every module that the linker noted in it.
func contents(t *testing.T, dir string) {
	top := "edgemesh_" + version(t) + "_linux_" + runtime.GOARCH
	if _, err := sh(t, nil, "tar", "-xzf", filepath.Join(dir, top+".tar.gz"), "-C", dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"edgemesh-agent", "edgemesh-relay", "edgemesh-cni"} {
		program := filepath.Join(dir, top, name)
		if out, err := sh(t, nil, program, "version"); err != nil || !strings.HasPrefix(out, "edgemesh "+version(t)+" (commit ") {
			t.Errorf("%s version: %v: %s", name, err, out)
		}
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal([]byte(read(t, dir, name+"_"+strings.TrimPrefix(top, "edgemesh_")+".cdx.json")), &list); err != nil {
			t.Fatal(err)
		}
		has := map[string]bool{}
		for _, c := range list.Components {
			has[c.Name+"@"+c.Version] = true
		}
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			if !has[d.Path+"@"+d.Version] {
				t.Errorf("%s: %s@%s is not listed", name, d.Path, d.Version)
			}
		}
	}
}

// krew: the manifest names the archive, its digest and program.
func krew(t *testing.T, dir, sums string) {
	archive := "kubectl-edgemesh_" + version(t) + "_linux_" + runtime.GOARCH + ".tar.gz"
	sum := regexp.MustCompile(`(?m)^(\S+)  ` + regexp.QuoteMeta(archive) + `$`).FindStringSubmatch(sums)
	var plugin struct {
		Kind string
		Spec struct {
			Version   string
			Platforms []struct{ URI, Sha256, Bin string }
		}
	}
	if sum == nil {
		t.Fatalf("%s has no checksum", archive)
	}
	if err := yaml.Unmarshal([]byte(read(t, dir, "kubectl-edgemesh.krew.yaml")), &plugin); err != nil || plugin.Kind != "Plugin" || len(plugin.Spec.Platforms) != 1 {
		t.Fatalf("%+v, %v", plugin, err)
	}
	if p := plugin.Spec.Platforms[0]; p.URI != "https://example.org/edgemesh/v"+version(t)+"/"+archive || p.Sha256 != sum[1] || p.Bin != "kubectl-edgemesh" {
		t.Errorf("%+v", p)
	}
}

// key makes one with openssl, and returns its file.
func key(t *testing.T, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key.pem")
	if _, err := sh(t, nil, "openssl", append([]string{"genpkey", "-out", file}, args...)...); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestKey: one of another kind, or with a passphrase, is refused before anything is built.
func TestKey(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("NOT TESTED: no openssl")
	}
	for _, args := range [][]string{{"-algorithm", "rsa"}, {"-algorithm", "x25519"}, {"-algorithm", "ed25519", "-aes256", "-pass", "pass:secret"}} {
		if _, err := sh(t, []string{"DRAFT=1", "VERSION=v" + version(t), "KEY=" + key(t, args...)}, "./release.sh"); err == nil || !strings.Contains(err.Error(), "no Ed25519 or ECDSA key") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// pgpKey makes a key without passphrase, and returns the file that it is exported to.
func pgpKey(t *testing.T, kind string) string {
	t.Helper()
	home, err := os.MkdirTemp("", "edgemesh-gpg-") // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "gpg-agent").Run()
		_ = os.RemoveAll(home)
	})
	gpg := func(args ...string) []byte {
		out, err := exec.CommandContext(t.Context(), "gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--no-tty", "--pinentry-mode=loopback", "--passphrase="}, args...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	gpg("--quick-generate-key", kind+"@edgemesh.invalid", kind, "sign", "never")
	return write(t, string(gpg("--armor", "--export-secret-keys")), t.TempDir(), kind+".asc")
}

// TestPGPKey: Helm knows no other keys than RSA.
func TestPGPKey(t *testing.T) {
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Skip("NOT TESTED: no gpg")
	}
	if _, err := sh(t, []string{"DRAFT=1", "VERSION=v" + version(t), "PGPKEY=" + pgpKey(t, "ed25519")}, "./release.sh"); err == nil || !strings.Contains(err.Error(), "no secret RSA key") {
		t.Error(err)
	}
}
