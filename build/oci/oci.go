// Package oci packs files, and images as OCI layouts (image-spec 1.1), into tar archives: equal content is equal bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is an entry of an archive: a directory where Name ends in "/", a symbolic link where it has a target.
type File struct {
	Name string
	Mode fs.FileMode
	Data []byte
	Link string
}

// Tar packs the files in this order, owned by root, all of one time.
func Tar(files []File, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{
			Name: f.Name, Linkname: f.Link, Mode: int64(f.Mode.Perm()), Size: int64(len(f.Data)), ModTime: at, Format: tar.FormatPAX,
			Typeflag: tar.TypeReg,
		}
		switch {
		case f.Link != "":
			h.Typeflag = tar.TypeSymlink
		case f.Name[len(f.Name)-1] == '/':
			h.Typeflag = tar.TypeDir
		}
		if f.Mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, err
		}
	}
	err := w.Close() // writes the end
	return out.Bytes(), err
}

// Index lists images, or other manifests, with what each descriptor says besides.
func Index(images ...mutate.IndexAddendum) v1.ImageIndex {
	return mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), images...)
}

// Archive is a layout whose one entry is an image or an index. Two annotations name it, as `ctr images import` and other
// tools expect (image-layout.md).
func Archive(name string, top mutate.Appendable) ([]byte, error) {
	dir, err := os.MkdirTemp("", "edgemesh-oci-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	names := map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	if _, err := layout.Write(dir, Index(mutate.IndexAddendum{Add: top, Descriptor: v1.Descriptor{Annotations: names}})); err != nil {
		return nil, err
	}
	var files []File
	tree := os.DirFS(dir)
	err = fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(tree, path)
		files = append(files, File{Name: path, Mode: 0o644, Data: data})
		return err
	})
	if err != nil {
		return nil, err
	}
	return Tar(files, time.Unix(0, 0))
}
