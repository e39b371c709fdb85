package main

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"
)

// TestArtefact: the layout leads from its index to the metadata that Artifact Hub reads, and to the chart's archive.
func TestArtefact(t *testing.T) {
	o := draft(t)
	if err := o.chart(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(o.out, "edgemesh-chart-"+o.number())
	data, err := os.ReadFile(name + ".oci.tar")
	if err != nil {
		t.Fatal(err)
	}
	content := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(d v1.Descriptor) []byte { return content["blobs/sha256/"+d.Digest.Hex] }
	var list v1.IndexManifest
	if err := json.Unmarshal(content["index.json"], &list); err != nil {
		t.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(blob(list.Manifests[0]), &m); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(name + ".tgz")
	if err != nil || !bytes.Equal(archive, blob(m.Layers[0])) || m.Layers[0].MediaType != chartContent || m.Config.MediaType != chartConfig {
		t.Errorf("the artefact is not the archive as Helm wants it: %+v, %v", m, err)
	}
	var meta struct {
		Version, Icon string
		Annotations   map[string]string
	}
	if err := json.Unmarshal(blob(m.Config), &meta); err != nil || meta.Version != o.number() {
		t.Errorf("version %q, %v", meta.Version, err)
	}
	icon, err := os.ReadFile(filepath.Join(repo, "manifests/icon.svg"))
	if err != nil || meta.Icon != "data:image/svg+xml;base64,"+base64.StdEncoding.EncodeToString(icon) {
		t.Errorf("Chart.yaml has not manifests/icon.svg (%v)", err)
	}
	// As Artifact Hub parses them (artifacthub.io/docs/topics/annotations/helm).
	kinds := map[string]bool{"added": true, "changed": true, "deprecated": true, "removed": true, "fixed": true, "security": true}
	for key, wants := range map[string][]string{
		"changes": {"kind", "description"}, "images": {"name", "image"}, "crds": {"kind", "version", "name", "displayName", "description"},
	} {
		var list []map[string]string
		if err := yaml.Unmarshal([]byte(meta.Annotations["artifacthub.io/"+key]), &list); err != nil || len(list) < 2 {
			t.Errorf("%s: %v, %v", key, list, err)
		}
		for _, item := range list {
			for _, want := range wants {
				if item[want] == "" {
					t.Errorf("%s: %v has no %s", key, item, want)
				}
			}
			if key == "changes" && !kinds[item["kind"]] {
				t.Errorf("%v: a kind that Artifact Hub does not know", item)
			}
		}
	}
}
