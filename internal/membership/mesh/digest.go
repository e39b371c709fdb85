package mesh

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Digest is the same for the same membership as a source has it, on whatever node.
func (s State) Digest() string {
	s.Nodes = slices.Clone(s.Nodes)
	for i := range s.Nodes {
		s.Nodes[i].NodeIPs, s.Nodes[i].Unreported = nil, false // each node's own alone
	}
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(struct {
		State
		Signed   []string
		Policies map[string]string
	}{s, s.Signed, s.PolicyNamespaces})
	return hex.EncodeToString(sum.Sum(nil)[:8])
}
