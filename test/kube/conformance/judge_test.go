package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"

	"edgemesh/test/tier"
)

// They need a cluster.
var _ = tier.Package(tier.OfLong)

const report = `[{"SpecReports": [
	{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeText": "resolves [Conformance]", "State": "passed", "RunTime": 2500000000},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Services", "local"], "LeafNodeText": "keeps sources", "State": "failed", "Failure": {"Message": "got 10.1.1.1"}},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] LoadBalancer"], "LeafNodeText": "needs a cloud", "State": "skipped", "Failure": {"Message": "Only supported for providers [gce]"}},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": "filtered out", "State": "skipped"},
	{"LeafNodeType": "It", "LeafNodeText": "later", "State": "pending"}
]}]`

func TestJudge(t *testing.T) {
	ran, err := Read(strings.NewReader(report))
	if err != nil || len(ran) != 3 || ran[0].Seconds != 2.5 || ran[1].Name != "[sig-network] Services local keeps sources" {
		t.Fatalf("%+v, %v", ran, err)
	}
	dns, services, cloud := ran[0].Name, ran[1].Name, ran[2].Name
	for name, c := range map[string]struct {
		ran      []Spec
		must     []string
		expected map[string]string
		want     []string // how each line begins
	}{
		"as expected":            {ran, []string{dns}, map[string]string{services: "reason"}, nil},
		"a failure":              {ran, []string{dns}, nil, []string{services + ": failed: got 10.1.1.1"}},
		"an unexpected pass":     {ran[:1], []string{dns}, map[string]string{dns: "reason"}, []string{dns + ": passes, and is listed as failing because reason"}},
		"one that did not run":   {ran[:1], []string{dns, "gone"}, nil, []string{"gone: did not run"}},
		"one that must not skip": {ran[2:], []string{cloud}, nil, []string{cloud + ": skipped: Only supported"}},
		"one that may skip":      {ran[2:], nil, nil, nil},
		"a focus of nothing":     {nil, nil, nil, []string{"nothing ran"}},
		"passes sometimes":       {ran[:1], nil, map[string]string{ran[0].Name: "sometimes: where it runs"}, nil},
		"twice":                  {[]Spec{ran[0], ran[0]}, nil, nil, []string{dns + ": ran twice"}},
		"timed out":              {[]Spec{{Name: dns, State: "timedout"}}, []string{dns}, nil, []string{dns + ": timedout"}},
	} {
		got := Judge(c.ran, c.must, c.expected)
		if len(got) != len(c.want) || slices.ContainsFunc(got, func(s string) bool {
			return !slices.ContainsFunc(c.want, func(w string) bool { return strings.HasPrefix(s, w) })
		}) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestRead(t *testing.T) {
	for text, want := range map[string]string{
		"": "report", `{}`: "report",
		`[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no API"}}]}]`: "SynchronizedBeforeSuite failed: no API",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestOfNetwork(t *testing.T) {
	got, err := OfNetwork("- codename: '[sig-network] DNS should\n    be long [Conformance]'\n- codename: '[sig-node] Pods [Conformance]'\n")
	if want := []string{"[sig-network] DNS should be long [Conformance]"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "- a\n", "- codename: '[sig-node] Pods [Conformance]'\n"} {
		if _, err := OfNetwork(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// The list that is here: each failure with a reason, and none of Conformance.
func TestLists(t *testing.T) {
	text, err := os.ReadFile("expected.txt")
	if err != nil {
		t.Fatal(err)
	}
	expected, err := Expected(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for s, reason := range expected {
		if strings.Contains(s, "[Conformance]") {
			t.Errorf("%s is Conformance and may fail because %s", s, reason)
		}
	}
	for _, bad := range []string{"a", "a | ", "a | b\na | c"} {
		if _, err := Expected(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
