package main

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

// Media types of the OCI image specification 1.1 (image-spec, media-types.md).
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
)

// blob is content by digest.
type blob struct {
	mediaType, digest string
	data              []byte
}

func newBlob(mediaType string, data []byte) blob {
	return blob{mediaType, fmt.Sprintf("sha256:%x", sha256.Sum256(data)), data}
}

func jsonBlob(mediaType string, v any) (blob, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return blob{}, err
	}
	return newBlob(mediaType, data), nil
}

// descriptor points to a blob (image-spec, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *ociPlatform      `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func (b blob) descriptor() descriptor {
	return descriptor{MediaType: b.mediaType, Digest: b.digest, Size: len(b.data)}
}

type ociPlatform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

// manifest and index are in the order of the specification (manifest.md,
// image-index.md).
type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// imageConfig is the part of config.md that we set.
type imageConfig struct {
	ociPlatform
	Created time.Time       `json:"created"`
	Config  containerConfig `json:"config"`
	RootFS  struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

type containerConfig struct {
	Env        []string          `json:"Env"`
	Entrypoint []string          `json:"Entrypoint"`
	Cmd        []string          `json:"Cmd"`
	WorkingDir string            `json:"WorkingDir"`
	Labels     map[string]string `json:"Labels"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// image is one image for several platforms.
type image struct {
	name, title string // the name is also the program's
	platforms   []platform
}

// platform is one image for one platform.
type platform struct {
	arch     arch
	manifest blob
	blobs    []blob // config and layers
}

func (img *image) reference(o options) string {
	return o.registry + "/" + img.name + ":" + o.tag
}

// add makes the image of one platform, a layer of each tree.
func (img *image) add(a arch, trees []*tree, o options) error {
	labels := map[string]string{
		"org.opencontainers.image.title":   img.title,
		"org.opencontainers.image.version": o.version,
		"org.opencontainers.image.created": o.created.Format(time.RFC3339),
	}
	if o.commit != "" {
		labels["org.opencontainers.image.revision"] = o.commit
	}
	c := imageConfig{
		ociPlatform: ociPlatform{a.goarch, "linux", a.variant},
		Created:     o.created,
		Config: containerConfig{
			Env:        []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{"/" + binDir + "/" + img.name},
			Cmd:        []string{"run"},
			WorkingDir: "/",
			Labels:     labels,
		},
	}
	c.RootFS.Type = "layers"
	m := manifest{SchemaVersion: 2, MediaType: typeManifest, Annotations: labels}
	p := platform{arch: a}
	for _, t := range trees {
		l, err := t.layer()
		if err != nil {
			return err
		}
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.diffID)
		c.History = append(c.History, history{o.created, "build/images"})
		m.Layers = append(m.Layers, l.descriptor())
		p.blobs = append(p.blobs, l.blob)
	}
	config, err := jsonBlob(typeConfig, c)
	if err != nil {
		return err
	}
	m.Config = config.descriptor()
	p.blobs = append(p.blobs, config)
	if p.manifest, err = jsonBlob(typeManifest, m); err != nil {
		return err
	}
	img.platforms = append(img.platforms, p)
	return nil
}

// archive is an OCI layout as a tar (image-layout.md), and the digest that identifies
// the image: the manifest's, or the index's if there are several. The two annotations
// name the image for `ctr images import` and for other tools.
func archive(ref string, platforms []platform) (data []byte, digest string, err error) {
	names := map[string]string{"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": ref}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	addBlob := func(b blob) { files["blobs/sha256/"+b.digest[len("sha256:"):]] = b.data }

	var manifests []descriptor
	for _, p := range platforms {
		d := p.manifest.descriptor()
		d.Platform = &ociPlatform{p.arch.goarch, "linux", p.arch.variant}
		manifests = append(manifests, d)
		addBlob(p.manifest)
		for _, b := range p.blobs {
			addBlob(b)
		}
	}
	top := manifests[0]
	if len(manifests) > 1 {
		list, err := jsonBlob(typeIndex, index{2, typeIndex, manifests})
		if err != nil {
			return nil, "", err
		}
		addBlob(list)
		top = list.descriptor()
	}
	top.Annotations = names
	entryPoint, err := jsonBlob(typeIndex, index{2, typeIndex, []descriptor{top}})
	if err != nil {
		return nil, "", err
	}
	files["index.json"] = entryPoint.data

	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[name])), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return nil, "", err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, "", err
		}
	}
	if err := w.Close(); err != nil { // writes the end: before Bytes
		return nil, "", err
	}
	return out.Bytes(), top.Digest, nil
}
