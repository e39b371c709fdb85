package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edgemesh/internal/durable"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

// history is which of the API's histories is known, and which members stay although the
// API does not list them. It belongs to known.
type history struct {
	stateDir string
	cluster  string // of the last proof, "" before the first
	saved    memory // on the disk
	kept     map[string]keptMember
	ids      map[string]objectIDs // of the members in force, by name
}

// keptMember is a member of the State in force that the API does not list, but whose
// removal is unproved.
type keptMember struct {
	mesh.Node
	// retained: it belongs to another history of the API, so no list can prove its removal.
	retained bool
}

// keep keeps members until the API lists them, or proves that they are gone, which it
// cannot for retained ones.
func (h *history) keep(members []mesh.Node, retained func(name string) bool) {
	for _, n := range members {
		h.kept[n.Name] = keptMember{n, retained(n.Name)}
	}
}

// keepSelf keeps this node a member while its own objects are repaired.
func (h *history) keepSelf(members []mesh.Node, self string) {
	if n, ok := mesh.ByName(members)[self]; ok {
		h.kept[self] = keptMember{n, true}
	}
}

// back forgets members that the API lists again.
func (h *history) back(present map[string]mesh.Node) {
	maps.DeleteFunc(h.kept, func(name string, _ keptMember) bool { _, ok := present[name]; return ok })
}

// deleted drops the member whose object was deleted.
func (h *history) deleted(k api.Kind, m *api.Meta) {
	if h.ids[m.Name].of(k) == m.UID {
		delete(h.kept, m.Name)
	}
}

// release drops the members whose absence is proved, as it is once every kind is, and
// those that the administrator named.
func (h *history) release(n *api.PodNetwork) {
	maps.DeleteFunc(h.kept, func(_ string, m keptMember) bool { return !m.retained })
	if n == nil {
		return
	}
	for _, name := range strings.Split(n.Meta.Annotations[api.ForgetAnnotation], ",") {
		switch name = strings.TrimSpace(name); name {
		case "":
		case "*":
			clear(h.kept)
		default:
			delete(h.kept, name)
		}
	}
}

// identify notes which objects make the members; for those that the API does not list,
// what is known stays.
func (h *history) identify(state mesh.State, listed func(name string) (objectIDs, bool)) {
	ids := make(map[string]objectIDs, len(state.Nodes))
	for _, m := range state.Nodes {
		if now, ok := listed(m.Name); ok {
			ids[m.Name] = now
		} else if known, ok := h.ids[m.Name]; ok {
			ids[m.Name] = known
		}
	}
	h.ids = ids
}

// save keeps the membership's history across restarts: always with a new membership,
// otherwise when cluster, retained members or their objects changed. New versions alone
// are not a reason: flash wears out.
func (h *history) save(versions map[string]uint64, always bool) error {
	m := memory{Cluster: h.cluster, Versions: versions, Objects: h.ids}
	for _, name := range sortedKeys(h.kept) {
		if h.kept[name].retained {
			m.Retained = append(m.Retained, name)
		}
	}
	if !always && m.Cluster == h.saved.Cluster && slices.Equal(m.Retained, h.saved.Retained) && maps.Equal(m.Objects, h.saved.Objects) {
		return nil
	}
	if err := m.save(h.stateDir); err != nil {
		return err
	}
	h.saved = m
	return nil
}

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
