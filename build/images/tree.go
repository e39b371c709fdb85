package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"edgemesh/build/oci"
	"edgemesh/build/programs"
)

// entry is a file or a symbolic link of an image.
type entry struct {
	data []byte
	link string // target; then there is no data
	mode fs.FileMode
}

// tree is the content of one layer, by path without a leading slash. Directories are
// implied: owned by root, mode 0755.
type tree struct {
	entries map[string]entry
}

func newTree() *tree { return &tree{map[string]entry{}} }

func (t *tree) file(name string, data []byte, mode fs.FileMode) {
	t.entries[name] = entry{data: data, mode: mode}
}

func (t *tree) symlink(name, target string) {
	t.entries[name] = entry{link: target, mode: 0o777}
}

// only is the part of t at paths whose last element is one of names.
func (t *tree) only(names ...string) *tree {
	out := newTree()
	for p, e := range t.entries {
		if slices.Contains(names, path.Base(p)) {
			out.entries[p] = e
		}
	}
	return out
}

// layer is a compressed tree.
type layer struct {
	oci.Blob        // zstd
	diffID   string // digest of the tar inside
	contents []string
}

// layer packs t: sorted, owned by root, dated 1970, so that equal content is equal bytes. Directories come before their
// content, then files from small to large: the plugin is packed before the agent, whose code repeats much of it and would
// otherwise be further away than the window (3 % of the layer).
func (t *tree) layer() (layer, error) {
	paths := slices.Sorted(maps.Keys(t.entries))
	dirs := map[string]bool{}
	for _, p := range paths {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	for _, p := range paths {
		if dirs[p] {
			return layer{}, fmt.Errorf("%s is both a file and a directory", p)
		}
	}
	files := slices.Clone(paths)
	slices.SortStableFunc(files, func(a, b string) int { return len(t.entries[a].data) - len(t.entries[b].data) })
	all := slices.Concat(slices.Sorted(maps.Keys(dirs)), files)

	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, p := range all {
		h := &tar.Header{Name: p, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		e, file := t.entries[p]
		switch {
		case !file:
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, p+"/", 0o755
		case e.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		default:
			h.Typeflag, h.Size, h.Mode = tar.TypeReg, int64(len(e.data)), int64(e.mode.Perm())
		}
		if err := w.WriteHeader(h); err != nil {
			return layer{}, fmt.Errorf("%s: %w", p, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return layer{}, fmt.Errorf("%s: %w", p, err)
		}
	}
	if err := w.Close(); err != nil {
		return layer{}, err
	}
	packed, err := compress(plain.Bytes())
	if err != nil {
		return layer{}, err
	}
	return layer{
		Blob:     oci.NewBlob(oci.TypeLayer, packed),
		diffID:   fmt.Sprintf("sha256:%x", sha256.Sum256(plain.Bytes())),
		contents: paths,
	}, nil
}

// window is the memory in bytes that unpacking a layer takes on an edge, where it may be short: that which every decoder
// should have (RFC 8878, 3.1.1.1.2). With four times as much the agent's image would be 0.6 MB smaller.
const window = 8 << 20

// compress makes a zstd frame. Equal input is equal output only for one version of the library: go.mod pins it.
func compress(plain []byte) ([]byte, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return z.EncodeAll(plain, nil), z.Close()
}

// clean is an archive's path in the form that t uses.
func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// binDir is where our programs are in an image; the agent looks for the plugin in its
// own directory.
const binDir = "usr/local/bin"

// buildBinaries builds the three programs for a, static and independent of this
// machine.
func buildBinaries(ctx context.Context, o options, a arch) (*tree, error) {
	dir, err := os.MkdirTemp("", "edgemesh-images-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	t := newTree()
	for part, name := range programs.Names {
		file := filepath.Join(dir, name)
		if err := programs.Build(ctx, o.repo, part, programs.Platform{GOARCH: a.goarch, GOARM: a.goarm}, o.stamp(), file); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		t.file(binDir+"/"+name, data, 0o755)
	}
	return t, nil
}
