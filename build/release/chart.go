package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"edgemesh/build/oci"
)

// Media types by which Helm knows its charts in a registry (helm.sh/docs/topics/registries).
const (
	chartConfig  = "application/vnd.cncf.helm.config.v1+json"
	chartContent = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chart is the archive that `helm package` makes, without the time of day, and the same as an OCI artefact, as `helm push`
// would put it into a registry.
func (o *options) chart() error {
	f := files{}
	if err := f.addAll(filepath.Join(o.repo, chartDir), "edgemesh"); err != nil {
		return err
	}
	hub, err := o.artifactHub()
	if err != nil {
		return err
	}
	about := f["edgemesh/Chart.yaml"]
	about.data = append(about.data, hub...) // its last key is annotations
	f["edgemesh/Chart.yaml"] = about
	o.chartAbout = about.data
	archive, err := f.tarball(o.stamp.Date)
	if err != nil {
		return err
	}
	name := "edgemesh-chart-" + o.number()
	if err := o.put(name+".tgz", archive); err != nil {
		return err
	}
	artefact, err := o.artefact(about.data, archive)
	if err != nil {
		return err
	}
	return o.put(name+".oci.tar", artefact)
}

// artefact is a chart as an OCI layout.
func (o options) artefact(about, archive []byte) ([]byte, error) {
	var meta struct {
		Name        string `json:"name"`
		Version     string `json:"version"`
		Description string `json:"description"`
	}
	if err := yaml.Unmarshal(about, &meta); err != nil {
		return nil, fmt.Errorf("the chart's Chart.yaml: %w", err)
	}
	text, err := yaml.YAMLToJSON(about)
	if err != nil {
		return nil, fmt.Errorf("the chart's Chart.yaml: %w", err)
	}
	config, layer := static.NewLayer(text, chartConfig), static.NewLayer(archive, chartContent)
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: map[string]string{
		"org.opencontainers.image.title":       meta.Name,
		"org.opencontainers.image.version":     meta.Version,
		"org.opencontainers.image.description": meta.Description,
		"org.opencontainers.image.created":     o.stamp.Date.Format("2006-01-02T15:04:05Z"),
		"org.opencontainers.image.revision":    o.stamp.Commit,
	}}
	c, errConfig := partial.Descriptor(config)
	l, errLayer := partial.Descriptor(layer)
	if err := errors.Join(errConfig, errLayer); err != nil {
		return nil, err
	}
	m.Config, m.Layers = *c, []v1.Descriptor{*l}
	manifest, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	image, err := partial.CompressedToImage(chartImage{text, manifest, layer})
	if err != nil {
		return nil, err
	}
	return oci.Archive("localhost/charts/"+meta.Name+":"+meta.Version, image)
}

// chartImage is how registries keep a chart: its metadata is the configuration, its archive the one layer.
type chartImage struct {
	config, manifest []byte
	layer            partial.CompressedLayer
}

func (c chartImage) RawConfigFile() ([]byte, error)                         { return c.config, nil }
func (c chartImage) RawManifest() ([]byte, error)                           { return c.manifest, nil }
func (c chartImage) MediaType() (types.MediaType, error)                    { return types.OCIManifestSchema1, nil }
func (c chartImage) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return c.layer, nil }

// artifactHub is what the chart's annotations say of this release: the images, and the changes, which CHANGELOG.md has.
func (o options) artifactHub() (string, error) {
	changes, err := os.ReadFile(filepath.Join(o.repo, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("  artifacthub.io/images: |\n")
	for _, p := range about {
		fmt.Fprintf(&b, "    - {name: %s, image: \"localhost/%[1]s:%s\"}\n", p.name, o.number())
	}
	b.WriteString("  artifacthub.io/changes: |\n")
	_, section, _ := strings.Cut(string(changes), "\n## ["+o.number()+"]")
	section, _, _ = strings.Cut(section, "\n## ")
	found := false
	for _, kind := range strings.Split(section, "\n### ")[1:] {
		title, items, _ := strings.Cut(kind, "\n")
		for _, item := range strings.Split("\n"+items, "\n- ")[1:] {
			item = strings.Join(strings.Fields(strings.ReplaceAll(item, "`", "")), " ")
			fmt.Fprintf(&b, "    - {kind: %s, description: %q}\n", strings.ToLower(title), item)
			found = true
		}
	}
	if !found || regexp.MustCompile(`[^\x20-\x7e\n]`).MatchString(b.String()) {
		return "", fmt.Errorf("CHANGELOG.md: the section [%s] has no items, or signs beyond ASCII, which the chart's annotations cannot quote", o.number())
	}
	return b.String(), nil
}
