package mesh

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
)

// digestForm begins a digest of this State: one with other fields has another.
const digestForm = "1-"

// Comparable reports whether a digest is of the same form as this program's.
func Comparable(digest string) bool { return strings.HasPrefix(digest, digestForm) }

// Digest is the same for the same membership as a source has it, on whatever node.
func (s State) Digest() string {
	s.Nodes, s.Signer = slices.Clone(s.Nodes), "" // whom to show what is signed changes no membership
	for i := range s.Nodes {
		s.Nodes[i].NodeIPs, s.Nodes[i].Unreported = nil, false // each node's own alone
	}
	sum := sha256.New()
	err := json.NewEncoder(sum).Encode(struct {
		State
		Signed   []string
		Policies map[string]string
	}{s, s.Signed, s.PolicyNamespaces})
	if err != nil { // "" agrees with nobody
		return ""
	}
	return digestForm + hex.EncodeToString(sum.Sum(nil)[:8])
}
