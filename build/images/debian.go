package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// release is the Debian release that the packages are of, keyring the keys that sign it; the package
// debian-archive-keyring has it, on Ubuntu too.
const (
	release = "trixie"
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// roots are the packages that an image is made from, with those they depend on.
var roots = []string{"ca-certificates", "iptables"}

// locked is a package, one line of packages.lock: ARCH NAME VERSION SHA256.
type locked struct{ arch, name, version, sha256 string }

const lockHeader = `# Debian packages whose files the agent's image has: ARCH NAME VERSION SHA256.
# Written by ` + "`make images-lock`" + `; commit it, so that a build is repeatable.
`

func parseLock(data []byte) ([]locked, error) {
	var out []locked
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if len(f) != 4 || len(f[3]) != 2*sha256.Size {
			return nil, fmt.Errorf("line %d is not ARCH NAME VERSION SHA256", n)
		}
		out = append(out, locked{f[0], f[1], f[2], f[3]})
	}
	return out, lines.Err()
}

func writeLock(path string, packages []locked) error {
	var b strings.Builder
	b.WriteString(lockHeader)
	for _, p := range packages {
		fmt.Fprintf(&b, "%s %s %s %s\n", p.arch, p.name, p.version, p.sha256)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// debian is a tree of extracted packages, and the package of every path in it.
type debian struct {
	tree
	owners map[string]locked
}

// contents is the file in the extracted tree in which record lists the packages and what they contain.
const (
	contents = "packages"
	record   = `cd "$1/var/cache/apt/archives" && for deb in *.deb; do
  dpkg-deb --show --showformat "= \${Package} \${Version} $(sha256sum <"$deb" | cut -c-64)\n" "$deb"
  dpkg-deb --fsys-tarfile "$deb" | tar -t
done >"$1/` + contents + `"`
)

// extract has the packages for one architecture: those of the lock at its versions, or the mirror's newest where the lock
// has none. Extracted trees of locked packages are kept in the cache.
func extract(ctx context.Context, o options, a arch, lock []locked, log *slog.Logger) (debian, error) {
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return debian{}, err
	}
	file := filepath.Join(o.cache, fmt.Sprintf("%s-%s-%x.tar", release, a.debian, sha256.Sum256(fmt.Append(nil, lock, record))))
	if _, err := os.Stat(file); err != nil || len(lock) == 0 {
		if err := mmdebstrap(ctx, o, a, lock, file, log); err != nil {
			return debian{}, err
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return debian{}, err
	}
	defer f.Close()
	d := debian{tree{}, map[string]locked{}}
	if err := d.read(f); err != nil {
		return debian{}, fmt.Errorf("%s: %w", file, err)
	}
	var of locked
	for line := range strings.Lines(string(d.tree[contents].data)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "=" {
			of = locked{a.debian, f[1], f[2], f[3]}
		} else {
			d.owners[clean(strings.TrimSuffix(line, "\n"))] = of
		}
	}
	return d, nil
}

// mmdebstrap writes the extracted packages to file. It runs none of their scripts, and needs no emulator for foreign
// architectures; apt checks the signatures.
func mmdebstrap(ctx context.Context, o options, a arch, lock []locked, file string, log *slog.Logger) error {
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("%w; install the package debian-archive-keyring", err)
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return fmt.Errorf("%w; install the package mmdebstrap", err)
	}
	include := slices.Clone(roots)
	for _, p := range lock {
		include = append(include, p.name+"="+p.version)
	}
	temporary := fmt.Sprintf("%s.%d", file, os.Getpid())
	defer func() { _ = os.Remove(temporary) }()
	run := func(hooks ...string) error {
		args := append([]string{"--variant=extract", "--format=tar", "--keyring=" + keyring, "--architectures=" + a.debian,
			"--include=" + strings.Join(include, ","), "--extract-hook=" + record}, hooks...)
		args = append(args, release, temporary)
		if o.mirror != "" {
			for _, s := range []string{"debian " + release, "debian " + release + "-updates", "debian-security " + release + "-security"} {
				args = append(args, "deb "+o.mirror+"/"+s+" main")
			}
		}
		if text, err := exec.CommandContext(ctx, "mmdebstrap", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("mmdebstrap for %s: %w:\n%s", a.debian, err, bytes.Join(regexp.MustCompile(`(?m)^(E:|Err:|  ).*`).FindAll(text, -1), []byte("\n")))
		}
		return nil
	}
	err := run()
	if err != nil && ctx.Err() == nil {
		// A mirror in the middle of a sync has lists that apt refuses. Those of updates are small and change most.
		log.Warn("trying the release without its updates: packages may be outdated", "err", err)
		if again := run(`--setup-hook=sed -Ei '/-(updates|security)/d' "$1/etc/apt/sources.list"`); again != nil {
			err = fmt.Errorf("%w\n%w", err, again)
		} else {
			err = nil
		}
	}
	if err != nil && len(lock) > 0 {
		return fmt.Errorf("%w\nDebian removes replaced versions from its mirrors: if a version of packages.lock is missing there, %s", err, remedy)
	}
	if err != nil {
		return err
	}
	return os.Rename(temporary, file)
}

const remedy = "review what changed, run `make images-lock` and commit it"

// errDiffers means that an image would have other packages than packages.lock says.
var errDiffers = errors.New("the mirror's packages are not those of packages.lock: " + remedy)

// differ compares the packages whose files an image has with the lock of its architecture. The error wraps errDiffers and
// names every package.
func differ(lock, got []locked) error {
	var errs []error
	for _, e := range got {
		i := slices.IndexFunc(lock, func(l locked) bool { return l.name == e.name })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("%s %s %s is not locked", e.arch, e.name, e.version))
		case lock[i] == e:
		case e.version == lock[i].version: // Debian never does that
			errs = append(errs, fmt.Errorf("%s %s %s: digest %s, locked %s", e.arch, e.name, e.version, e.sha256, lock[i].sha256))
		default:
			errs = append(errs, fmt.Errorf("%s %s: version %s, locked %s", e.arch, e.name, e.version, lock[i].version))
		}
	}
	if len(got) < len(lock) {
		errs = append(errs, fmt.Errorf("%d of %d packages", len(got), len(lock)))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n%w", errDiffers, errors.Join(errs...))
}

// packages are those that own the files of an image, each once.
func (d debian) packages(image tree) []locked {
	var out []locked
	for path := range image {
		if p, owned := d.owners[path]; owned && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b locked) int { return cmp.Compare(a.name, b.name) })
	return out
}

// aptMirror finds the Debian mirror that this machine's apt uses, "" if there is none, as on Ubuntu: root is the directory
// with sources.list and sources.list.d; the result has /debian below it.
func aptMirror(root string) string {
	files, _ := filepath.Glob(filepath.Join(root, "sources.list.d", "*")) // the pattern is good
	line := regexp.MustCompile(`(?m)^(?:URIs:|deb\s(?:\[[^]]*\]\s)?)\s*(https?://\S+?)/debian/?(?:\s|$)`)
	for _, f := range append([]string{filepath.Join(root, "sources.list")}, files...) {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // one of several places
		}
		if m := line.FindSubmatch(data); m != nil {
			return string(m[1])
		}
	}
	return ""
}
