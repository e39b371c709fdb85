package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

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

// artefact is a chart as an OCI layout: its metadata is the configuration, its archive the one layer.
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
	config, layer := oci.NewBlob(chartConfig, text), oci.NewBlob(chartContent, archive)
	m, err := oci.JSON(oci.TypeManifest, oci.Manifest{
		SchemaVersion: 2, MediaType: oci.TypeManifest, Config: config.Descriptor(), Layers: []oci.Descriptor{layer.Descriptor()},
		Annotations: map[string]string{
			"org.opencontainers.image.title":       meta.Name,
			"org.opencontainers.image.version":     meta.Version,
			"org.opencontainers.image.description": meta.Description,
			"org.opencontainers.image.created":     o.stamp.Date.Format("2006-01-02T15:04:05Z"),
			"org.opencontainers.image.revision":    o.stamp.Commit,
		},
	})
	if err != nil {
		return nil, err
	}
	return oci.Archive("localhost/charts/"+meta.Name+":"+meta.Version, m.Descriptor(), []oci.Blob{config, layer, m})
}

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
