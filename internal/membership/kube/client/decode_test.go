package client

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
)

const nodeList = `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":[
 {"metadata":{"name":"a","uid":"1","resourceVersion":"7","managedFields":[{"x":1}],"annotations":{"big":"value"},
   "labels":{"kubernetes.io/os":"linux","node-restriction.kubernetes.io/mesh":"yes"}},
  "spec":{"podCIDRs":["10.244.1.0/24"],"taints":[{"key":"x"}]},
  "status":{"images":[{"names":["x"]}],"conditions":[{"type":"Ready","status":"True"},{"type":"NetworkUnavailable","status":"False"}]}},
 {"metadata":{"name":"b","uid":"2"}}]}`

func TestDecodeList(t *testing.T) {
	items, rv, err := decodeList(strings.NewReader(nodeList), api.Nodes(), func(o api.Object) { o.Metadata().Annotations = nil })
	if err != nil || rv != "42" || len(items) != 2 {
		t.Fatalf("%d items, version %q, %v", len(items), rv, err)
	}
	n, ok := items[0].(*api.Node)
	if !ok || n.Meta.Name != "a" || n.Spec.PodCIDRs[0] != "10.244.1.0/24" || len(n.Status.Conditions) != 2 || n.Meta.Annotations != nil {
		t.Errorf("read %+v", n)
	}
	if _, _, err := decodeList(strings.NewReader(`{"kind":"NodeList","metadata":{},"items":null}`), api.Nodes(), nil); err != nil {
		t.Errorf("a list of none: %v", err)
	}
}

// A list that is cut off anywhere reads as no list, never as a shorter one.
func TestDecodeListCutShort(t *testing.T) {
	for i := range len(nodeList) {
		if items, _, err := decodeList(strings.NewReader(nodeList[:i]), api.Nodes(), nil); err == nil {
			t.Fatalf("cut after %d bytes it reads as %d items", i, len(items))
		}
	}
}

func TestDecodeListRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"another kind": `{"kind":"PodList","metadata":{},"items":[]}`,
		"no items":     `{"kind":"NodeList","metadata":{}}`,
		"a page":       `{"kind":"NodeList","metadata":{"continue":"abc"},"items":[]}`,
		"an error":     `{"kind":"Status","code":500}`,
		"an array":     `[]`,
		"items object": `{"kind":"NodeList","items":{}}`,
		"wrong type":   `{"kind":"NodeList","items":[{"metadata":7}]}`,
	} {
		if _, _, err := decodeList(strings.NewReader(text), api.Nodes(), nil); err == nil {
			t.Errorf("%s is taken for a list", name)
		}
	}
}

func TestDecodeEvent(t *testing.T) {
	read := func(text string) (Event, error) {
		return decodeEvent(json.NewDecoder(strings.NewReader(text)), api.MeshNodes(), nil)
	}
	e, err := read(`{"type":"MODIFIED","object":{"metadata":{"name":"a","uid":"u"},"spec":{"peerID":"x"}}}`)
	if err != nil || e.What != Modified || e.Object.Metadata().Name != "a" {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := read(`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`); !apierrors.IsResourceExpired(err) {
		t.Errorf("410 reads as %v", err)
	}
	if _, err := read(``); !errors.Is(err, io.EOF) {
		t.Errorf("the end reads as %v", err)
	}
	for _, bad := range []string{`{"type":"ADDED","object":{}}`, `{"type":"ADDED","object":7}`, `{"type":"NEWS","object":{}}`, `{"type":"ERROR","object":7}`, `{"type":`} {
		if e, err := read(bad); err == nil {
			t.Errorf("%s reads as %+v", bad, e)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(nodeList))
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, k := range api.Kinds() {
			if items, _, err := decodeList(strings.NewReader(string(data)), k, nil); err == nil && !json.Valid(data) {
				// Only what follows the list may be wrong.
				var first json.RawMessage
				if json.NewDecoder(strings.NewReader(string(data))).Decode(&first) != nil {
					t.Fatalf("%d items out of no JSON", len(items))
				}
			}
			if e, err := decodeEvent(json.NewDecoder(strings.NewReader(string(data))), k, nil); err == nil && e.What != Bookmark && e.Object.Metadata().Name == "" {
				t.Fatal("an event about nothing")
			}
		}
	})
}
