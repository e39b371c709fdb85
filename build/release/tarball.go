package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// file is one file of an archive.
type file struct {
	data []byte
	mode fs.FileMode
}

// files are an archive's content, by path.
type files map[string]file

// add takes a file of the tree as name.
func (f files) add(path, name string, mode fs.FileMode) error {
	data, err := os.ReadFile(path)
	f[name] = file{data, mode}
	return err
}

// addAll takes the files below dir.
func (f files) addAll(dir, name string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if filepath.Ext(path) == ".sh" {
			mode = 0o755
		}
		return f.add(path, filepath.ToSlash(filepath.Join(name, below)), mode)
	})
}

// tarball packs the files: sorted, owned by root, with one time, so that equal content is equal bytes.
func (f files) tarball(at time.Time) ([]byte, error) {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(zip)
	for _, name := range slices.Sorted(maps.Keys(f)) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(f[name].data)), Mode: int64(f[name].mode), ModTime: at, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f[name].data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
