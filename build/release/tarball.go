package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"edgemesh/build/oci"
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

// tarball packs the files, sorted, owned by root and all of one time, so that equal content is equal bytes.
func (f files) tarball(at time.Time) ([]byte, error) {
	var all []oci.File
	for _, name := range slices.Sorted(maps.Keys(f)) {
		all = append(all, oci.File{Name: name, Mode: f[name].mode, Data: f[name].data})
	}
	plain, err := oci.Tar(all, at)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = zip.Write(plain)
	if err = errors.Join(err, zip.Close()); err != nil { // writes the end
		return nil, err
	}
	return out.Bytes(), nil
}
