package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"edgemesh/build/oci"
)

// image is one image for several platforms.
type image struct {
	name, title string // the name is also the program's
	user        string // "" is root
	platforms   []platform
}

// platform is one image for one platform.
type platform struct {
	arch  arch
	image v1.Image
}

func (img *image) reference(o options) string {
	return o.registry + "/" + img.name + ":" + o.tag
}

// add makes the image of one platform, a layer of each tree.
func (img *image) add(a arch, trees []tree, o options) error {
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
	made, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), &v1.ConfigFile{
		Architecture: a.goarch, OS: "linux", Variant: a.variant,
		Created: v1.Time{Time: o.created},
		RootFS:  v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       img.user,
			Env:        []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{"/" + binDir + "/" + img.name},
			Cmd:        []string{"run"},
			WorkingDir: "/",
			Labels:     labels,
		},
	})
	if err != nil {
		return err
	}
	for _, t := range trees {
		layer, err := t.layer()
		if err != nil {
			return err
		}
		made, err = mutate.Append(made, mutate.Addendum{
			Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "build/images"},
		})
		if err != nil {
			return err
		}
	}
	img.platforms = append(img.platforms, platform{a, mutate.Annotations(made, labels).(v1.Image)})
	return nil
}

// archive is the layout of these platforms, and the digest that identifies the image: the manifest's, or the index's if
// there are several.
func archive(ref string, platforms []platform) (data []byte, digest v1.Hash, err error) {
	var top interface {
		mutate.Appendable
		Digest() (v1.Hash, error)
	} = platforms[0].image
	if len(platforms) > 1 {
		var all []mutate.IndexAddendum
		for _, p := range platforms {
			at := &v1.Platform{Architecture: p.arch.goarch, OS: "linux", Variant: p.arch.variant}
			all = append(all, mutate.IndexAddendum{Add: p.image, Descriptor: v1.Descriptor{Platform: at}})
		}
		top = oci.Index(all...)
	}
	if digest, err = top.Digest(); err != nil {
		return nil, digest, err
	}
	data, err = oci.Archive(ref, top)
	return data, digest, err
}

// layer packs t: sorted, owned by root, dated 1970, so that equal content is equal bytes. Directories come before their
// content, then files from small to large: the plugin is packed before the agent, whose code repeats much of it and would
// otherwise be further away than the window (3 % of the layer).
func (t tree) layer() (v1.Layer, error) {
	dirs := map[string]bool{}
	for p := range t {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	var all []oci.File
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		all = append(all, oci.File{Name: d + "/", Mode: 0o755})
	}
	files := slices.Sorted(maps.Keys(t))
	for _, p := range files {
		if dirs[p] {
			return nil, fmt.Errorf("%s is both a file and a directory", p)
		}
	}
	slices.SortStableFunc(files, func(a, b string) int { return len(t[a].data) - len(t[b].data) })
	for _, p := range files {
		all = append(all, oci.File{Name: p, Mode: t[p].mode, Data: t[p].data, Link: t[p].link})
	}
	plain, err := oci.Tar(all, time.Unix(0, 0))
	if err != nil {
		return nil, err
	}
	packed, err := compress(plain)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil },
		tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd))
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
