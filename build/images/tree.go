package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"edgemesh/build/programs"
)

// entry is a file or a symbolic link of an image.
type entry struct {
	data []byte
	link string // target; then there is no data
	mode fs.FileMode
}

// tree is the content of one layer, by path without a leading slash. Directories are implied: owned by root, mode 0755.
type tree map[string]entry

func (t tree) symlink(name, target string) { t[name] = entry{link: target, mode: 0o777} }

// read adds the files of an archive.
func (t tree) read(archive io.Reader) error {
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch name := clean(h.Name); h.Typeflag {
		case tar.TypeReg:
			data, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			t[name] = entry{data: data, mode: h.FileInfo().Mode()}
		case tar.TypeSymlink:
			t.symlink(name, h.Linkname)
		case tar.TypeLink:
			t.symlink(name, "/"+clean(h.Linkname))
		}
	}
}

// clean is an archive's path in the form that t uses.
func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// binDir is where our programs are in an image; the agent looks for the plugin in its own directory.
const binDir = "usr/local/bin"

// binaries builds programs for a, static and independent of this machine.
func binaries(ctx context.Context, o options, a arch) (map[string]entry, error) {
	dir, err := os.MkdirTemp("", "edgemesh-images-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := map[string]entry{}
	for part, name := range programs.Names {
		file := filepath.Join(dir, name)
		if err := programs.Build(ctx, o.repo, part, programs.Platform{GOARCH: a.goarch, GOARM: a.goarm}, o.stamp(), file); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		out[name] = entry{data: data, mode: 0o755}
	}
	return out, nil
}

// pick is a tree of these programs.
func pick(programs map[string]entry, names ...string) tree {
	t := tree{}
	for _, name := range names {
		t[fmt.Sprintf("%s/%s", binDir, name)] = programs[name]
	}
	return t
}
