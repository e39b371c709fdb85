// Command images builds the agent's and the relay's OCI images: for several
// architectures, without a container engine and without a base image. The programs
// that the agent calls (iptables in both flavours) come from Debian packages;
// the relay's image holds its binary and CA certificates.
//
// The same sources, Go release and packages.lock give the same bytes. README.md
// lists the images and how to import them.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"edgemesh/build/programs"
)

// options are the command line.
type options struct {
	out      string    // directory for the archives
	cache    string    // directory for extracted packages
	repo     string    // the module's root
	lock     string    // packages.lock
	registry string    // name before /edgemesh-agent
	tag      string    // and after it
	version  string    // linked into the binaries
	commit   string    // likewise
	created  time.Time // stated in the images
	arches   []arch
	update   bool // rewrite the lock
	mirror   string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, o, os.Stdout, log)
	}
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	var names string
	fs := flag.NewFlagSet("images", flag.ContinueOnError)
	fs.StringVar(&o.out, "out", "dist/images", "`directory` for the archives")
	fs.StringVar(&o.cache, "cache", "", "`directory` that keeps extracted packages (default: edgemesh/images in the user's cache)")
	fs.StringVar(&o.repo, "repo", ".", "`root` of the module")
	fs.StringVar(&o.registry, "registry", "localhost", "`prefix` of the images' names")
	fs.StringVar(&o.tag, "tag", "dev", "images' `tag`")
	fs.StringVar(&o.version, "version", "dev", "`version` linked into the binaries")
	fs.StringVar(&o.commit, "commit", "", "commit `hash` linked into the binaries")
	fs.StringVar(&names, "arch", "amd64,arm64,arm", "comma-separated `list` of architectures")
	fs.StringVar(&o.mirror, "mirror", "", "Debian `mirror`, with /debian and /debian-security below it (default: the one this machine's apt uses, else Debian's own)")
	fs.BoolVar(&o.update, "update", false, "rewrite packages.lock from the mirror's current packages")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return o, fmt.Errorf("find the cache directory: %w; set --cache", err)
		}
		o.cache = filepath.Join(dir, "edgemesh", "images")
	}
	if o.mirror == "" {
		o.mirror = aptMirror("/etc/apt")
	}
	o.lock = filepath.Join(o.repo, "build", "images", "packages.lock")
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(knownArches, func(a arch) bool { return a.goarch == name })
		if i < 0 {
			return o, fmt.Errorf("--arch: %q is not one of amd64, arm64, arm", name)
		}
		o.arches = append(o.arches, knownArches[i])
	}
	var err error
	o.created, err = epoch(os.Getenv("SOURCE_DATE_EPOCH"))
	return o, err
}

// stamp is what the programs say of their build.
func (o options) stamp() programs.Stamp {
	return programs.Stamp{Version: o.version, Commit: o.commit, Date: o.created}
}

// epoch is SOURCE_DATE_EPOCH (reproducible-builds.org): seconds since 1970.
func epoch(text string) (time.Time, error) {
	if text == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	s, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(s, 0).UTC(), nil
}

// arch is one platform, as OCI, Go and Debian name it.
type arch struct {
	goarch, variant string // OCI's names
	goarm           string // Go's
	debian          string // Debian's
}

var knownArches = []arch{
	{goarch: "amd64", debian: "amd64"},
	{goarch: "arm64", variant: "v8", debian: "arm64"},
	{goarch: "arm", variant: "v7", goarm: "7", debian: "armhf"},
}

func (a arch) String() string {
	if a.goarm != "" {
		return a.goarch + "-" + a.variant
	}
	return a.goarch
}

// nobody is the user and group of the relay, the same as in the chart: it needs no rights on its host.
const nobody = "65532:65532"

// run builds all images and prints what it wrote.
func run(ctx context.Context, o options, stdout io.Writer, log *slog.Logger) error {
	if o.update {
		return update(ctx, o, log)
	}
	data, err := os.ReadFile(o.lock)
	if err != nil {
		return err
	}
	lock, err := parseLock(data)
	if err != nil {
		return fmt.Errorf("%s: %w", o.lock, err)
	}
	images := []*image{
		{name: "edgemesh-agent", title: "EdgeMesh agent"},
		{name: "edgemesh-relay", title: "EdgeMesh relay", user: nobody},
	}
	for _, a := range o.arches {
		base, err := lockedBase(ctx, o, a, lock, log)
		if err != nil {
			return fmt.Errorf("base for %s: %w", a, err)
		}
		bins, err := binaries(ctx, o, a)
		if err != nil {
			return err
		}
		for _, img := range images {
			trees := []tree{base.certificates, pick(bins, "edgemesh-relay")}
			if img.name == "edgemesh-agent" {
				trees = []tree{base.tools, pick(bins, "edgemesh-agent", "edgemesh-cni")}
			}
			if err := img.add(a, trees, o); err != nil {
				return fmt.Errorf("%s for %s: %w", img.name, a, err)
			}
		}
	}
	return write(images, o, stdout)
}

// lockedBase is the base for a, of the packages that the lock has for it.
func lockedBase(ctx context.Context, o options, a arch, lock []locked, log *slog.Logger) (base, error) {
	lock = slices.DeleteFunc(slices.Clone(lock), func(p locked) bool { return p.arch != a.debian })
	if len(lock) == 0 {
		return base{}, errors.New("packages.lock has nothing for it")
	}
	d, err := extract(ctx, o, a, lock, log)
	if err != nil {
		return base{}, err
	}
	b, err := d.base()
	if err != nil {
		return base{}, err
	}
	return b, differ(lock, d.packages(b.tools))
}

// update writes the lock of the mirror's newest packages.
func update(ctx context.Context, o options, log *slog.Logger) error {
	var lock []locked
	for _, a := range knownArches {
		d, err := extract(ctx, o, a, nil, log)
		if err != nil {
			return err
		}
		b, err := d.base()
		if err != nil {
			return fmt.Errorf("base for %s: %w", a, err)
		}
		lock = append(lock, d.packages(b.tools)...)
	}
	slices.SortFunc(lock, func(a, b locked) int { return cmp.Or(cmp.Compare(a.arch, b.arch), cmp.Compare(a.name, b.name)) })
	return writeLock(o.lock, lock)
}

// write makes one archive per image and architecture, for edges on slow links,
// and one with all of them, for registries.
func write(images []*image, o options, stdout io.Writer) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	var sums bytes.Buffer
	put := func(file string, img *image, platforms []platform) error {
		data, digest, err := archive(img.reference(o), platforms)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		fmt.Fprintf(&sums, "%s  %s\n", digest, file)
		fmt.Fprintf(stdout, "%-36s %6.1f MB  %s\n", file, float64(len(data))/1e6, digest)
		return os.WriteFile(filepath.Join(o.out, file), data, 0o644)
	}
	for _, img := range images {
		for _, p := range img.platforms {
			if err := put(fmt.Sprintf("%s-linux-%s.tar", img.name, p.arch), img, []platform{p}); err != nil {
				return err
			}
		}
		if len(img.platforms) > 1 {
			if err := put(img.name+".tar", img, img.platforms); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(o.out, "DIGESTS"), sums.Bytes(), 0o644)
}
