package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// release is the Debian release the packages are of.
const release = "bookworm"

// keyring signs that release; the package debian-archive-keyring has it, on
// Ubuntu too.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// apt calls apt-get for one architecture, with its own state: this machine's sources
// and lists are neither used nor changed. Proxies from the machine's apt.conf still
// apply.
type apt struct {
	dir    string
	mirror string
	arch   string // Debian's name
}

// setUp writes the configuration and reads the mirror's lists. warning names the
// lists that are unavailable (a mirror in the middle of a sync); apt uses the others,
// and a package that is in none of them is an error later.
func (a apt) setUp(ctx context.Context) (warning, err error) {
	if _, err := os.Stat(keyring); err != nil {
		return nil, fmt.Errorf("%w; install the package debian-archive-keyring", err)
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "empty"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	sources := ""
	for _, s := range []struct{ path, suites string }{
		{"debian", release + " " + release + "-updates"},
		{"debian-security", release + "-security"},
	} {
		sources += fmt.Sprintf("Types: deb\nURIs: %s/%s\nSuites: %s\nTargets: Packages\nComponents: main\nSigned-By: %s\n\n", a.mirror, s.path, s.suites, keyring)
	}
	conf := fmt.Sprintf(`Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Etc::sourcelist "%[1]s/debian.sources";
Dir::Etc::sourceparts "%[1]s/empty";
Dir::Etc::preferences "%[1]s/none";
Dir::Etc::preferencesparts "%[1]s/empty";
APT::Architecture "%[2]s";
#clear APT::Architectures;
APT::Architectures { "%[2]s"; };
APT::Sandbox::User "";
APT::Get::List-Cleanup "true";
Acquire::Languages "none";
Acquire::Retries "3";
`, a.dir, a.arch)
	for name, text := range map[string]string{"apt.conf": conf, "debian.sources": sources, "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	_, warning = a.run(ctx, a.dir, "apt-get", "update", "-q")
	return warning, ctx.Err()
}

// versions returns the mirror's version of each package.
func (a apt) versions(ctx context.Context, names []string) (map[string]string, error) {
	out, err := a.run(ctx, a.dir, "apt-cache", append([]string{"show", "--no-all-versions"}, names...)...)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	var name string
	for line := range strings.Lines(out) {
		if v, ok := strings.CutPrefix(line, "Package: "); ok {
			name = strings.TrimSpace(v)
		}
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			found[name] = strings.TrimSpace(v)
		}
	}
	for _, n := range names {
		if found[n] == "" {
			return nil, fmt.Errorf("the mirror has no package %s for %s", n, a.arch)
		}
	}
	return found, nil
}

// download fetches packages and returns their content by name; apt has checked
// it against the signed lists.
func (a apt) download(ctx context.Context, versions map[string]string) (map[string][]byte, error) {
	dir, err := os.MkdirTemp(a.dir, "download-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	args := []string{"download", "-q"}
	for name, v := range versions {
		args = append(args, name+"="+v)
	}
	if _, err := a.run(ctx, dir, "apt-get", args...); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, f := range found {
		name, _, _ := strings.Cut(filepath.Base(f), "_")
		if out[name], err = os.ReadFile(f); err != nil {
			return nil, err
		}
	}
	if len(out) != len(versions) {
		return nil, fmt.Errorf("apt-get download: only %d of %d packages arrived", len(out), len(versions))
	}
	return out, nil
}

func (a apt) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, program, append([]string{"-c", filepath.Join(a.dir, "apt.conf")}, args...)...)
	c.Dir = dir
	c.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// errNoMirror means that this machine's apt has no Debian mirror, as on Ubuntu.
var errNoMirror = errors.New("apt's sources on this machine name no Debian mirror: set --mirror")

// aptMirror finds the Debian mirror that this machine's apt uses: root is the
// directory with sources.list and sources.list.d; the result has /debian below it.
func aptMirror(root string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, "sources.list.d", "*"))
	if err != nil {
		return "", err
	}
	line := regexp.MustCompile(`(?m)^(?:URIs:|deb\s(?:\[[^]]*\]\s)?)\s*(https?://\S+?)/debian/?(?:\s|$)`)
	for _, f := range append([]string{filepath.Join(root, "sources.list")}, files...) {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // one of several places
		}
		if m := line.FindSubmatch(data); m != nil {
			return string(m[1]), nil
		}
	}
	return "", errNoMirror
}
