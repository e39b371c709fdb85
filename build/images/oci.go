package main

import (
	"time"

	"edgemesh/build/oci"
)

// imageConfig is the part of the specification's config.md that we set.
type imageConfig struct {
	oci.Platform
	Created time.Time       `json:"created"`
	Config  containerConfig `json:"config"`
	RootFS  struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

type containerConfig struct {
	User       string            `json:"User,omitempty"`
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
	user        string // "" is root
	platforms   []platform
}

// platform is one image for one platform.
type platform struct {
	arch     arch
	manifest oci.Blob
	blobs    []oci.Blob // config and layers
}

func (img *image) reference(o options) string {
	return o.registry + "/" + img.name + ":" + o.tag
}

// add makes the image of one platform, a layer of each tree.
func (img *image) add(a arch, trees []*tree, o options) error {
	labels := map[string]string{
		"org.opencontainers.image.title":       img.title,
		"org.opencontainers.image.description": "Pod network for clusters whose nodes are behind NATs",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     o.version,
		"org.opencontainers.image.created":     o.created.Format(time.RFC3339),
	}
	if o.commit != "" {
		labels["org.opencontainers.image.revision"] = o.commit
	}
	c := imageConfig{
		Platform: oci.Platform{Architecture: a.goarch, OS: "linux", Variant: a.variant},
		Created:  o.created,
		Config: containerConfig{
			User:       img.user,
			Env:        []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{"/" + binDir + "/" + img.name},
			Cmd:        []string{"run"},
			WorkingDir: "/",
			Labels:     labels,
		},
	}
	c.RootFS.Type = "layers"
	m := oci.Manifest{SchemaVersion: 2, MediaType: oci.TypeManifest, Annotations: labels}
	p := platform{arch: a}
	for _, t := range trees {
		l, err := t.layer()
		if err != nil {
			return err
		}
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.diffID)
		c.History = append(c.History, history{o.created, "build/images"})
		m.Layers = append(m.Layers, l.Descriptor())
		p.blobs = append(p.blobs, l.Blob)
	}
	config, err := oci.JSON(oci.TypeConfig, c)
	if err != nil {
		return err
	}
	m.Config = config.Descriptor()
	p.blobs = append(p.blobs, config)
	if p.manifest, err = oci.JSON(oci.TypeManifest, m); err != nil {
		return err
	}
	img.platforms = append(img.platforms, p)
	return nil
}

// archive is the layout of these platforms, and the digest that identifies the image: the manifest's, or the index's if
// there are several.
func archive(ref string, platforms []platform) (data []byte, digest string, err error) {
	var blobs []oci.Blob
	var manifests []oci.Descriptor
	for _, p := range platforms {
		d := p.manifest.Descriptor()
		d.Platform = &oci.Platform{Architecture: p.arch.goarch, OS: "linux", Variant: p.arch.variant}
		manifests = append(manifests, d)
		blobs = append(append(blobs, p.manifest), p.blobs...)
	}
	top := manifests[0]
	if len(manifests) > 1 {
		list, err := oci.List(manifests)
		if err != nil {
			return nil, "", err
		}
		blobs = append(blobs, list)
		top = list.Descriptor()
	}
	data, err = oci.Archive(ref, top, blobs)
	return data, top.Digest, err
}
