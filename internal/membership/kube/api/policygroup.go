package api

import "strings"

// PolicyGroup is a part of the pods that peers of NetworkPolicies select. Only the controller may write it.
type PolicyGroup struct {
	Type
	Meta Meta            `json:"metadata"`
	Spec PolicyGroupSpec `json:"spec"`
}

// PolicyGroupSpec has the members of one chunk.
type PolicyGroupSpec struct {
	Group   string   `json:"group"`   // what it selects, as package policy names it
	Chunk   int      `json:"chunk"`   // from 0
	Chunks  int      `json:"chunks"`  // of the group
	Members []string `json:"members"` // ADDRESS, or ADDRESS/PROTOCOL/PORT
	// Selector is what it selects, in words that no other group has; "" of a controller, or a CustomResourceDefinition, before.
	Selector string `json:"selector,omitempty"`
}

// Metadata implements Object.
func (g *PolicyGroup) Metadata() *Meta { return &g.Meta }

// GroupLabel is the label of PolicyGroups by which agents select those that they need; its value is the group.
const GroupLabel = Group + "/group"

// A group has at most MaxChunks PolicyGroups of at most MaxChunk members.
const (
	MaxChunk  = 1000
	MaxChunks = 1024
)

// PolicyGroups are those of some groups, or all without any.
func PolicyGroups(groups ...string) Kind {
	k := Kind{Name: "policygroups", Kind: "PolicyGroup", Group: Group, Version: Version, Foreign: true, New: func() Object { return new(PolicyGroup) }}
	if len(groups) > 0 {
		k.Selector = GroupLabel + " in (" + strings.Join(groups, ",") + ")"
	}
	return k
}
