// Package conformance judges what Kubernetes' own test suite reports of the pod network.
//
//	judge.go         the report against the specs that must run, and those that may fail
//	policies.txt     the specs of NetworkPolicies (Netpol), but those of SCTP, which needs a module of the kernel; Kubernetes v1.35
//	dualstack.txt    the specs of clusters with two families, but slow ones and those of SCTP; Kubernetes v1.35
//	expected.txt     specs that fail, each with its reason
//	build.sh         builds the suite and its images
//	binaries/        the suite's module
//
// The specs with [Conformance] are those that the suite lists itself (test/conformance/testdata/conformance.yaml of its version).
package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Spec is one test of the suite.
type Spec struct {
	Name, State, Message string
	Seconds              float64
	Attempts             int // more than one: it failed before
}

// node is a part of Ginkgo's JSON report (types.SpecReport).
type node struct {
	LeafNodeType            string
	LeafNodeText            string
	ContainerHierarchyTexts []string
	State                   string
	RunTime                 float64 // ns
	NumAttempts             int
	Failure                 struct{ Message string }
}

// Read returns the specs that Ginkgo ran. A failure outside of a spec, such as in the suite's setup, is an error. What was filtered out
// is left out: it is skipped without a message.
func Read(r io.Reader) ([]Spec, error) {
	var suites []struct{ SpecReports []node }
	if err := json.NewDecoder(r).Decode(&suites); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var out []Spec
	for _, suite := range suites {
		for _, n := range suite.SpecReports {
			name := strings.Join(append(n.ContainerHierarchyTexts, n.LeafNodeText), " ")
			switch {
			case n.LeafNodeType != "It" && n.State != "passed" && n.State != "skipped":
				return nil, fmt.Errorf("the suite's %s %s: %s", n.LeafNodeType, n.State, n.Failure.Message)
			case n.LeafNodeType != "It", n.State == "pending", n.State == "skipped" && n.Failure.Message == "":
				continue
			}
			out = append(out, Spec{name, n.State, n.Failure.Message, n.RunTime / 1e9, n.NumAttempts})
		}
	}
	return out, nil
}

// Lines are those of a list that are no comments.
func Lines(text string) (out []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// OfNetwork returns the specs of [sig-network] in the suite's own list of those that every conformant cluster passes, an error if there
// are none.
func OfNetwork(text string) (out []string, err error) {
	var all []struct{ Codename string }
	if err := yaml.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("list of Conformance: %w", err)
	}
	for _, s := range all {
		if strings.HasPrefix(s.Codename, "[sig-network] ") {
			out = append(out, s.Codename)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("list of Conformance: no spec of [sig-network]")
	}
	return out, nil
}

// sometimes begins the reason of a spec that also passes, by where its pods happen to run.
const sometimes = "sometimes: "

// Expected reads specs that fail, or skip themselves, with the reason of each: NAME | REASON.
func Expected(text string) (map[string]string, error) {
	out := map[string]string{}
	for _, line := range Lines(text) {
		name, reason, found := strings.Cut(line, " | ")
		if !found || reason == "" {
			return nil, fmt.Errorf("%q has no reason", line)
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%q is there twice", name)
		}
		out[name] = reason
	}
	return out, nil
}

// Judge compares what ran with the specs that had to, and returns each difference: a spec of must that did not run, one that failed or
// skipped itself unexpectedly, and one that passed although it was expected to fail. Other specs may skip themselves.
func Judge(ran []Spec, must []string, expected map[string]string) (wrong []string) {
	if len(ran) == 0 {
		return []string{"nothing ran: the focus matches no spec"}
	}
	state := map[string]string{}
	for _, s := range ran {
		_, failure := expected[s.Name]
		known := slices.Contains(must, s.Name)
		switch {
		case state[s.Name] != "":
			wrong = append(wrong, s.Name+": ran twice")
		case s.State == "passed" && failure && !strings.HasPrefix(expected[s.Name], sometimes):
			wrong = append(wrong, s.Name+": passes, and is listed as failing because "+expected[s.Name])
		case s.State == "passed", failure, s.State == "skipped" && !known:
		default:
			wrong = append(wrong, fmt.Sprintf("%s: %s: %s", s.Name, s.State, s.Message))
		}
		state[s.Name] = s.State
	}
	for _, name := range must {
		if state[name] == "" {
			wrong = append(wrong, name+": did not run")
		}
	}
	return wrong
}
