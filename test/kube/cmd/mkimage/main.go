// Command mkimage writes an OCI archive of one layer, as `ctr images import` reads
// it: for the static programs of the test cluster.
//
//	mkimage -out FILE.tar -name NAME:TAG -entrypoint /PROGRAM FILE:/PATH…
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// descriptor points to a blob (OCI image specification 1.1, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// file is an entry of an archive; a name that ends in / is a directory's.
type file struct {
	name string
	mode int64
	data []byte
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fs := flag.NewFlagSet("mkimage", flag.ContinueOnError)
	out := fs.String("out", "", "archive to write")
	name := fs.String("name", "", "the image's full name")
	entrypoint := fs.String("entrypoint", "", "its program")
	if err := fs.Parse(args); err != nil {
		return err
	}
	layer, err := rootFS(fs.Args())
	if err != nil {
		return err
	}
	archive, err := image(layer, *name, *entrypoint)
	if err != nil {
		return err
	}
	return os.WriteFile(*out, archive, 0o644)
}

// rootFS returns the layer with the given FILE:/PATH pairs and the directories they need.
func rootFS(pairs []string) ([]byte, error) {
	files := []file{{name: "etc/", mode: 0o755}, {name: "tmp/", mode: 0o1777}}
	for _, p := range pairs {
		src, dst, ok := strings.Cut(p, ":/")
		if !ok {
			return nil, fmt.Errorf("%q is not FILE:/PATH", p)
		}
		data, err := os.ReadFile(src)
		if err != nil {
			return nil, err
		}
		for dir := path.Dir(dst); dir != "."; dir = path.Dir(dir) {
			files = append(files, file{name: dir + "/", mode: 0o755})
		}
		files = append(files, file{dst, 0o755, data})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return pack(slices.CompactFunc(files, func(a, b file) bool { return a.name == b.name }))
}

// image returns the archive of an image with one layer (image-layout.md).
func image(layer []byte, name, entrypoint string) ([]byte, error) {
	files := []file{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	add := func(mediaType string, data []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		files = append(files, file{"blobs/sha256/" + sum, 0o644, data})
		return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(data)}
	}
	addJSON := func(mediaType string, v any) (descriptor, error) {
		data, err := json.Marshal(v)
		return add(mediaType, data), err
	}
	l := add("application/vnd.oci.image.layer.v1.tar", layer)
	config, err := addJSON("application/vnd.oci.image.config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{entrypoint}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{l.Digest}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := addJSON("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []descriptor{l},
	})
	if err != nil {
		return nil, err
	}
	// containerd names an imported image by the first of these.
	manifest.Annotations = map[string]string{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": name,
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	if err != nil {
		return nil, err
	}
	return pack(append(files, file{"index.json", 0o644, index}))
}

// pack returns the files as a tar.
func pack(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}
