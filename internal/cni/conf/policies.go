package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// PoliciesFile is beside SubnetFile. The agent writes it first.
const PoliciesFile = "policies.json"

// EveryNamespace stands in Policies for all namespaces, without those of Except.
const EveryNamespace = "*"

// Policies is its content: where new pods are closed until the agent has judged them.
type Policies struct {
	Namespaces map[string][]string `json:"namespaces"`        // the directions that are closed: Ingress, Egress
	Except     []string            `json:"except,omitempty"`  // namespaces that EveryNamespace does not concern
	Refused    string              `json:"refused,omitempty"` // why such pods get no network at all: nothing here can close them
}

// Closed are the directions in which new pods of a namespace are closed, in order.
func (p Policies) Closed(namespace string) []string {
	out := slices.Clone(p.Namespaces[namespace])
	if !slices.Contains(p.Except, namespace) {
		out = append(out, p.Namespaces[EveryNamespace]...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// LoadPolicies reads the file; a missing one has no namespaces.
func LoadPolicies(runtimeDir string) (p Policies, err error) {
	path := filepath.Join(runtimeDir, PoliciesFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return p, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}
