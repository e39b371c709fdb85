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
	MaxLength  int               `json:"maxLength"`
	Enum       []string          `json:"enum"`
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
		"podnetworks":  {"spec": PodNetworkSpec{}, "status": PodNetworkStatus{}},
		"meshnodes":    {"spec": MeshNodeSpec{}, "status": MeshNodeStatus{}},
		"noderecords":  {"spec": NodeRecordSpec{}},
		"podblocks":    {"spec": PodBlockSpec{}},
		"policygroups": {"spec": PolicyGroupSpec{}},
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

// most is how many characters an object of a schema may have in JSON; what has no bound is listed.
func (s schema) most(path string) (n int, unbounded []string) {
	longest := func(list []string) (n int) {
		for _, x := range list {
			n = max(n, len(x))
		}
		return n
	}
	switch {
	case len(s.Enum) > 0:
		n = longest(s.Enum) + len(`"",`)
	case s.Format == "date-time":
		n = len(`"2026-01-01T00:00:00Z",`)
	case s.Type == "string" && s.MaxLength > 0:
		n = s.MaxLength + len(`"",`)
	case s.Type == "array" && s.MaxItems > 0:
		n, unbounded = s.Items.most(path + "[]")
		n = n*s.MaxItems + len(`[],`)
	case s.Type == "object" && s.Properties != nil:
		n = len(`{},`)
		for name, p := range s.Properties {
			k, list := p.most(path + "." + name)
			n, unbounded = n+k+len(name)+len(`"":`), append(unbounded, list...)
		}
	default:
		unbounded = []string{path}
	}
	return n, unbounded
}

// A node writes its own MeshNode, which every agent downloads: at every bound it has 8 KiB, half a KiB for its metadata included.
func TestMeshNodesAreSmall(t *testing.T) {
	s := readSchema(t, "meshnodes")
	n := 512
	for _, part := range []string{"spec", "status"} {
		k, unbounded := s.Properties[part].most(part)
		if n += k; len(unbounded) > 0 {
			t.Errorf("without a bound: %v", unbounded)
		}
	}
	if n > 8<<10 {
		t.Errorf("%d bytes at every bound", n)
	}
	t.Log(n, "bytes")
}
