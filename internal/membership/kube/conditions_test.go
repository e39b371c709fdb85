package kube

import (
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"edgemesh/internal/membership/kube/api"
)

// What an agent writes as conditions of its MeshNode is what the CRD takes: a type it does not list, or a message that is
// too long, would make the API refuse the whole status.
func TestConditionsFitTheCRD(t *testing.T) {
	raw, err := os.ReadFile("../../../manifests/edgemesh/crds/meshnodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties map[string]*schema `json:"properties"`
		Items      *schema            `json:"items"`
		Enum       []any              `json:"enum"`
		MaxLength  int                `json:"maxLength"`
		MaxItems   int                `json:"maxItems"`
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		t.Fatal(err)
	}
	conditions := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"]
	types := conditions.Items.Properties["type"].Enum
	for _, written := range []string{readyType, blockType, healthyType, api.NATType} {
		if !slices.Contains(types, any(written)) {
			t.Errorf("the CRD refuses the condition %s: it takes %v", written, types)
		}
	}
	if conditions.MaxItems < len(types) {
		t.Errorf("%d conditions, of %d types", conditions.MaxItems, len(types))
	}
	if long := clip(strings.Repeat("é", 2000)); utf8.RuneCountInString(long) > conditions.Items.Properties["message"].MaxLength || !utf8.ValidString(long) {
		t.Errorf("a message of %d characters, valid: %v", utf8.RuneCountInString(long), utf8.ValidString(long))
	}
}
