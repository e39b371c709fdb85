package reference

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// definition is the part of a CustomResourceDefinition that the page shows.
type definition struct {
	Spec struct {
		Group    string
		Names    struct{ Kind, Plural string }
		Versions []struct {
			Name   string
			Schema struct{ OpenAPIV3Schema schema }
		}
	}
}

// schema is the part of an OpenAPI schema that the page shows.
type schema struct {
	Type, Description string
	Properties        map[string]schema
	Items             *schema
	Required          []string
	Enum              []any
	Default           any
}

func crds(root string) (string, error) {
	var b strings.Builder
	b.WriteString("# Kinds of the API\n\nMade from the definitions in `manifests/edgemesh/crds` by `make reference`. All kinds are cluster-scoped.\n")
	files, err := filepath.Glob(filepath.Join(root, "manifests/edgemesh/crds/*.yaml"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		var crd definition
		if err := yaml.Unmarshal(data, &crd); err != nil {
			return "", fmt.Errorf("%s: %w", f, err)
		}
		for _, v := range crd.Spec.Versions {
			s := v.Schema.OpenAPIV3Schema
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", crd.Spec.Names.Kind,
				wrap(fmt.Sprintf("`%s/%s`, `kubectl get %s`. %s", crd.Spec.Group, v.Name, crd.Spec.Names.Plural, s.Description)))
			b.WriteString(row("field", "type", "meaning") + row("---", "---", "---"))
			for _, part := range []string{"spec", "status"} {
				if p, there := s.Properties[part]; there {
					fields(&b, part, p)
				}
			}
		}
	}
	return b.String(), nil
}

// fields writes the rows of what is below a field.
func fields(b *strings.Builder, path string, s schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		kind, at := p.Type, path+"."+name
		below := p
		if p.Items != nil {
			below = *p.Items
			kind = "list of " + below.Type
			at += "[]"
		}
		if slices.Contains(s.Required, name) {
			kind += ", required"
		}
		meaning := p.Description
		var values []string
		for _, v := range p.Enum {
			values = append(values, fmt.Sprint(v))
		}
		if len(values) > 0 {
			meaning += " One of " + strings.Join(values, ", ") + "."
		}
		if p.Default != nil {
			meaning += fmt.Sprintf(" Default: %v.", p.Default)
		}
		b.WriteString(row("`"+at+"`", kind, cell(meaning)))
		fields(b, at, below)
	}
}
