// Command release builds everything that a release consists of into one directory: archives, Debian and RPM packages,
// images, the chart, manifests, lists of contents (SPDX) and checksums. The same commit gives the same bytes.
//
//	main.go      the command line; what a version must agree with
//	steps.go     the parts, in order
//	tarball.go   archives that depend on their content only
//	packages.go  Debian and RPM packages, by nfpm
//	krew.go      the plugin of kubectl for workstations, and its manifest for krew
//	chart.go     the chart, as Helm's archive and as an OCI artefact
//	sbom.go      which modules are in a program, and which Debian packages in an image
//	sign.go      provenance, and signatures where a key is given
//	prov.go      Helm's provenance of the chart, where a PGP key is given
//	performance.go  refuses figures in docs/performance.md that are older than the release
//
// DESIGN.md has the decisions and their reasons.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"edgemesh/build/programs"
)

// options are the command line.
type options struct {
	repo, out string
	arches    []arch
	images    bool
	draft     bool   // of an unreleased version, or of changed files
	url       string // from where the release will be fetched
	key       string // file with the private key to sign with; "" does not sign
	pgp       string // file with the PGP key to sign the chart with; likewise
	stamp     programs.Stamp

	chartAbout []byte // Chart.yaml, once the chart is made
}

// arch is a platform, as Go, archives, and packages name it.
type arch struct {
	programs.Platform
	name   string // of archives
	nfpm   string
	debian string
}

var arches = []arch{
	{programs.Platform{GOARCH: "amd64"}, "amd64", "amd64", "amd64"},
	{programs.Platform{GOARCH: "arm64"}, "arm64", "arm64", "arm64"},
	{programs.Platform{GOARCH: "arm", GOARM: "7"}, "armv7", "arm7", "armhf"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(ctx, args)
	if err != nil {
		return err
	}
	if err := o.check(ctx); err != nil {
		return err
	}
	return o.build(ctx)
}

func parse(ctx context.Context, args []string) (options, error) {
	var o options
	var names string
	fs := flag.NewFlagSet("release", flag.ContinueOnError)
	fs.StringVar(&o.stamp.Version, "version", "", "`version` to release, such as v0.2.0")
	fs.StringVar(&o.repo, "repo", ".", "`root` of the module")
	fs.StringVar(&o.out, "out", "dist/release", "`directory` for the results; it is emptied first")
	fs.StringVar(&names, "arch", "amd64,arm64,arm", "comma-separated `list` of architectures")
	fs.BoolVar(&o.images, "images", true, "also build the images, which need Debian's mirror")
	fs.BoolVar(&o.draft, "draft", false, "accept changed files and a version that CHANGELOG.md calls unreleased")
	fs.StringVar(&o.url, "url", "https://localhost/edgemesh", "`address` below which URL/VERSION has the release, for krew's manifest")
	fs.StringVar(&o.key, "key", "", "PEM `file` with an Ed25519 or ECDSA key that signs checksums and provenance")
	fs.StringVar(&o.pgp, "pgp-key", "", "`file` with a RSA secret key of PGP without passphrase, for Helm's provenance of the chart")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	for name := range strings.SplitSeq(names, ",") {
		found := false
		for _, a := range arches {
			if a.GOARCH == name {
				o.arches, found = append(o.arches, a), true
			}
		}
		if !found {
			return o, fmt.Errorf("--arch: %q is not one of amd64, arm64, arm", name)
		}
	}
	commit, err := o.git(ctx, "log", "-1", "--format=%H %ct")
	if err != nil {
		return o, fmt.Errorf("a release is built from a commit: %w", err)
	}
	hash, seconds, _ := strings.Cut(commit, " ")
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return o, fmt.Errorf("the commit's time: %w", err)
	}
	o.stamp.Commit, o.stamp.Date = hash, time.Unix(at, 0).UTC()
	return o, nil
}

func (o options) git(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir, c.Stderr = o.repo, os.Stderr
	out, err := c.Output()
	return strings.TrimSpace(string(out)), err
}

// number is the version without its v, as packages and charts write it.
func (o options) number() string { return strings.TrimPrefix(o.stamp.Version, "v") }

// check refuses a version that the tree does not have.
func (o options) check(ctx context.Context) error {
	if !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(o.stamp.Version) {
		return fmt.Errorf("--version: %q is not of the form v1.2.3", o.stamp.Version)
	}
	chart, err := os.ReadFile(filepath.Join(o.repo, chartDir, "Chart.yaml"))
	if err != nil {
		return err
	}
	for _, line := range []string{"version: " + o.number(), `appVersion: "` + o.number() + `"`} {
		if !strings.Contains("\n"+string(chart), "\n"+line+"\n") {
			return fmt.Errorf("%s/Chart.yaml has no line %q: set both versions, run make manifests, and commit", chartDir, line)
		}
	}
	changes, err := os.ReadFile(filepath.Join(o.repo, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	section := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(o.number()) + `\] - (.*)$`).FindSubmatch(changes)
	if section == nil {
		return fmt.Errorf("CHANGELOG.md has no section [%s]", o.number())
	}
	if _, err := o.signer(); err != nil { // before minutes of building
		return err
	}
	if o.pgp != "" {
		if _, _, err := o.pgpKey(); err != nil {
			return err
		}
	}
	if o.draft {
		return nil
	}
	if err := o.performance(); err != nil {
		return err
	}
	if _, err := time.Parse(time.DateOnly, string(section[1])); err != nil {
		return fmt.Errorf("CHANGELOG.md: [%s] is dated %q: put the day of the release there and commit, or pass --draft", o.number(), section[1])
	}
	changed, err := o.git(ctx, "status", "--porcelain")
	if err != nil {
		return fmt.Errorf("git status: %w", err)
	}
	if changed != "" {
		return fmt.Errorf("files differ from the commit: commit them, or pass --draft\n%s", changed)
	}
	return nil
}
