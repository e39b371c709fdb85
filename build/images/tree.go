package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
	oci.Blob        // gzip
	diffID   string // digest of the tar inside
	contents []string
}

// layer packs t: sorted, owned by root, dated 1970, so that equal content is
// equal bytes.
func (t *tree) layer() (layer, error) {
	paths := slices.Sorted(maps.Keys(t.entries))
	dirs := map[string]bool{}
	for _, p := range paths {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	all := slices.Concat(paths, slices.Collect(maps.Keys(dirs)))
	slices.Sort(all) // a directory sorts before its content

	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return layer{}, err
	}
	sum := sha256.New()
	w := tar.NewWriter(io.MultiWriter(zip, sum))
	for _, p := range all {
		h := &tar.Header{Name: p, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		e, file := t.entries[p]
		switch {
		case file && dirs[p]:
			return layer{}, fmt.Errorf("%s is both a file and a directory", p)
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
	if err := zip.Close(); err != nil {
		return layer{}, err
	}
	return layer{
		Blob:     oci.NewBlob(oci.TypeLayer, packed.Bytes()),
		diffID:   fmt.Sprintf("sha256:%x", sum.Sum(nil)),
		contents: paths,
	}, nil
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
