package api

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// schema is the part of an OpenAPI schema that says which fields there are.
type schema struct {
	Type       string            `json:"type"`
	Format     string            `json:"format"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
	Additional *schema           `json:"additionalProperties"`
	Default    any               `json:"default"`
	MaxItems   int               `json:"maxItems"`
}

func readSchema(t *testing.T, plural string) schema {
	t.Helper()
	data, err := os.ReadFile("../../../../manifests/edgemesh/crds/" + plural + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	if err := yaml.Unmarshal(data, &crd); err != nil || len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Name != Version {
		t.Fatalf("%s: %v, %+v", plural, err, crd)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// differ lists where a Go type and a schema do not have the same fields of the same types.
func differ(path string, g reflect.Type, s schema) (out []string) {
	if g.Kind() == reflect.Pointer {
		g = g.Elem()
	}
	want := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Slice: "array", reflect.Map: "object", reflect.Struct: "object",
	}[g.Kind()]
	if g == reflect.TypeFor[time.Time]() {
		want = "string"
		if s.Format != "date-time" {
			out = append(out, path+": not a date-time in the schema")
		}
	}
	if want != s.Type {
		return append(out, fmt.Sprintf("%s: %q in the schema, %s in Go", path, s.Type, g))
	}
	switch {
	case g == reflect.TypeFor[time.Time]():
	case g.Kind() == reflect.Slice:
		return append(out, differ(path+"[]", g.Elem(), *s.Items)...)
	case g.Kind() == reflect.Map:
		return append(out, differ(path+"{}", g.Elem(), *s.Additional)...)
	case g.Kind() == reflect.Struct:
		left := maps.Clone(s.Properties)
		for i := range g.NumField() {
			name, _, _ := strings.Cut(g.Field(i).Tag.Get("json"), ",")
			if name == "lastHeartbeatTime" { // of Nodes' conditions alone
				continue
			}
			p, there := left[name]
			if !there {
				out = append(out, path+"."+name+": not in the schema")
				continue
			}
			out = append(out, differ(path+"."+name, g.Field(i).Type, p)...)
			delete(left, name)
		}
		for _, name := range slices.Sorted(maps.Keys(left)) {
			out = append(out, path+"."+name+": not in Go")
		}
	}
	return out
}

// The structs and the CustomResourceDefinitions, which are written by hand, have the same fields, defaults and bounds.
func TestSchemas(t *testing.T) {
	for plural, parts := range map[string]map[string]any{
		"podnetworks": {"spec": PodNetworkSpec{}, "status": PodNetworkStatus{}},
		"meshnodes":   {"spec": MeshNodeSpec{}, "status": MeshNodeStatus{}},
		"noderecords": {"spec": NodeRecordSpec{}},
		"podblocks":   {"spec": PodBlockSpec{}},
	} {
		s := readSchema(t, plural)
		for name := range s.Properties {
			if _, there := parts[name]; !there && name != "apiVersion" && name != "kind" && name != "metadata" {
				t.Errorf("%s: nothing compares %s", plural, name)
			}
		}
		for name, part := range parts {
			for _, d := range differ(plural+"."+name, reflect.TypeOf(part), s.Properties[name]) {
				t.Error(d)
			}
		}
	}
	network := readSchema(t, "podnetworks").Properties["spec"].Properties
	if v4, v6 := network["blockSize"].Default, network["blockSizeIPv6"].Default; v4 != float64(DefaultBlockSize) || v6 != float64(DefaultBlockSizeIPv6) {
		t.Errorf("defaults are %v and %v in the schema, %d and %d in Go", v4, v6, DefaultBlockSize, DefaultBlockSizeIPv6)
	}
	if n := readSchema(t, "meshnodes").Properties["status"].Properties["relayAddresses"].MaxItems; n != MaxRelayAddresses {
		t.Errorf("at most %d relay addresses in the schema, %d in Go", n, MaxRelayAddresses)
	}
}

func TestDiffer(t *testing.T) {
	s := schema{Type: "object", Properties: map[string]schema{"a": {Type: "string"}, "b": {Type: "array", Items: &schema{Type: "integer"}}, "c": {Type: "string"}}}
	type same struct {
		A string     `json:"a"`
		B []int      `json:"b,omitempty"`
		C *time.Time `json:"c"`
	}
	type other struct {
		A int      `json:"a"`
		B []string `json:"b"`
		D string   `json:"d"`
	}
	if got := differ("x", reflect.TypeFor[same](), s); !slices.Equal(got, []string{"x.c: not a date-time in the schema"}) {
		t.Errorf("%q", got)
	}
	want := []string{`x.a: "string" in the schema, int in Go`, `x.b[]: "integer" in the schema, string in Go`, "x.d: not in the schema", "x.c: not in Go"}
	if got := differ("x", reflect.TypeFor[other](), s); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
