package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"edgemesh/agent/kube/api"
	"edgemesh/internal/durable"
)

// MemoryFile is what the source keeps beside the membership snapshot: to which history
// the snapshot belongs, and to which moment of it.
const MemoryFile = "kube.json"

// memory is the content of MemoryFile.
type memory struct {
	// Cluster is the UID of kube-system, "" before the first proof.
	Cluster string `json:"cluster"`
	// Versions are those of the last proved lists, by plural.
	Versions map[string]uint64 `json:"versions,omitempty"`
	// Retained are members the API did not list when its history changed: their
	// absence proves nothing.
	Retained []string `json:"retained,omitempty"`
	// Objects are those that make the members, by name.
	Objects map[string]objectIDs `json:"objects,omitempty"`
}

// objectIDs are the UIDs of a member's Node and MeshNode: an event about another
// object of that name says nothing about the member.
type objectIDs struct {
	Node string `json:"node"`
	Mesh string `json:"mesh"`
}

// of is the UID of the object of that kind, "" for the other kinds.
func (o objectIDs) of(k api.Kind) string {
	switch k.Name {
	case api.Nodes().Name:
		return o.Node
	case api.MeshNodes().Name:
		return o.Mesh
	}
	return ""
}

// loadMemory returns nil without a usable file: the snapshot beside it then
// belongs to an unknown history. A torn file (power cut) counts as none.
func loadMemory(dir string) *memory {
	data, err := os.ReadFile(filepath.Join(dir, MemoryFile))
	if err != nil {
		return nil
	}
	var m memory
	if json.Unmarshal(data, &m) != nil {
		return nil
	}
	return &m
}

// save writes m, unless the file has it already, and survives a power cut.
func (m memory) save(dir string) error {
	path := filepath.Join(dir, MemoryFile)
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("keep the API's history: %w", err)
	}
	data = append(data, '\n')
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	if err := durable.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("keep the API's history: %w", err)
	}
	return nil
}

// sortedKeys makes the file the same for the same content.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
