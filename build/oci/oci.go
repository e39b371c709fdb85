// Package oci writes OCI layouts as tar archives (image-spec 1.1): of images, and of other things that registries keep,
// such as Helm charts. It is JSON and tar; equal content is equal bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Media types of the OCI image specification (media-types.md).
const (
	TypeIndex    = "application/vnd.oci.image.index.v1+json"
	TypeManifest = "application/vnd.oci.image.manifest.v1+json"
	TypeConfig   = "application/vnd.oci.image.config.v1+json"
	TypeLayer    = "application/vnd.oci.image.layer.v1.tar+zstd"
)

// Blob is content by digest.
type Blob struct {
	MediaType, Digest string
	Data              []byte
}

// NewBlob is a blob of this content.
func NewBlob(mediaType string, data []byte) Blob {
	return Blob{mediaType, fmt.Sprintf("sha256:%x", sha256.Sum256(data)), data}
}

// JSON is a blob of v.
func JSON(mediaType string, v any) (Blob, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return Blob{}, err
	}
	return NewBlob(mediaType, data), nil
}

// Descriptor points to a blob (descriptor.md).
type Descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *Platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Descriptor points to the blob.
func (b Blob) Descriptor() Descriptor {
	return Descriptor{MediaType: b.MediaType, Digest: b.Digest, Size: len(b.Data)}
}

// Platform is what an image is for.
type Platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

// Manifest and Index are in the order of the specification (manifest.md, image-index.md).
type Manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        Descriptor        `json:"config"`
	Layers        []Descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// Index lists manifests.
type Index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []Descriptor `json:"manifests"`
}

// List is the blob of an index.
func List(manifests []Descriptor) (Blob, error) {
	return JSON(TypeIndex, Index{2, TypeIndex, manifests})
}

// Archive is a layout whose one entry is top, which the two annotations name as `ctr images import` and other tools look
// for it (image-layout.md).
func Archive(name string, top Descriptor, blobs []Blob) ([]byte, error) {
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	for _, b := range blobs {
		files["blobs/sha256/"+b.Digest[len("sha256:"):]] = b.Data
	}
	top.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	entry, err := List([]Descriptor{top})
	if err != nil {
		return nil, err
	}
	files["index.json"] = entry.Data

	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[name])), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil { // writes the end: before Bytes
		return nil, err
	}
	return out.Bytes(), nil
}
