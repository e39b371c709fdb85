// Package file is the membership source that needs no Kubernetes: one YAML file,
// cluster.yaml, the same on every node and relay.
package file

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"edgemesh/agent/config/strict"
	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
)

// MaxSize bounds cluster.yaml, in bytes: over 30,000 nodes.
const MaxSize = 4 << 20

// document is cluster.yaml as written.
type document struct {
	PodCIDRs   []string `json:"podCIDRs"`
	Relays     []string `json:"relays"`
	WANCIDRs   []string `json:"wanCIDRs"`
	Encryption string   `json:"encryption"`
	Banned     []string `json:"banned"`
	Nodes      []node   `json:"nodes"`
}

type node struct {
	Name     string   `json:"name"`
	PeerID   string   `json:"peerID"`
	PodCIDRs []string `json:"podCIDRs"`
}

// Load reads and checks the membership in path. The error names the file; it is a
// *mesh.Invalid with every problem's YAML key, unless the file could not be read at all
// (for example fs.ErrNotExist).
func Load(path string) (mesh.State, error) {
	data, err := strict.ReadFile(path, MaxSize)
	if err != nil {
		return mesh.State{}, err
	}
	return parse(path, data)
}

// parse reads and checks the membership in data, the content of path. The error is a
// *mesh.Invalid.
func parse(path string, data []byte) (mesh.State, error) {
	bad := mesh.Invalid{File: path}
	var doc document
	if len(data) > MaxSize {
		bad.Addf("", "larger than %d bytes", MaxSize)
	} else {
		strict.Unmarshal(data, &doc, &bad)
	}
	if err := bad.Err(); err != nil {
		return mesh.State{}, err
	}
	s := doc.state(&bad)
	if err := bad.Err(); err != nil {
		return mesh.State{}, err
	}
	if err := s.Validate(); err != nil {
		var invalid *mesh.Invalid
		if errors.As(err, &invalid) {
			invalid.File = path
		}
		return mesh.State{}, err
	}
	return s, nil
}

// state turns text into values; Validate checks what they mean together.
func (d document) state(bad *mesh.Invalid) mesh.State {
	s := mesh.State{
		PodCIDRs:   prefixes(bad, "podCIDRs", d.PodCIDRs),
		WANCIDRs:   prefixes(bad, "wanCIDRs", d.WANCIDRs),
		Encryption: cmp.Or(mesh.Encryption(d.Encryption), mesh.EncryptionAuto),
		Banned:     banned(bad, d.Banned),
	}
	s.Relays = relays(bad, d.Relays, s.PodCIDRs)
	for i, n := range d.Nodes {
		field := fmt.Sprintf("nodes[%d]", i)
		s.Nodes = append(s.Nodes, mesh.Node{
			Name:     n.Name,
			PeerID:   peerID(bad, field+".peerID", n.PeerID),
			PodCIDRs: prefixes(bad, field+".podCIDRs", n.PodCIDRs),
		})
	}
	return s
}

func prefixes(bad *mesh.Invalid, field string, list []string) []netip.Prefix {
	var out []netip.Prefix
	for i, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			bad.Addf(fmt.Sprintf("%s[%d]", field, i), "%q is not a prefix in CIDR notation, like 10.244.1.0/24 or fd00:1::/64", text)
			continue
		}
		out = append(out, p)
	}
	return out
}

// Start returns the membership to start with: the one in path or, if path is missing or
// broken, the snapshot in stateDir. In the second case warning says what is wrong with
// path. Without a usable snapshot err is path's problem, together with the snapshot's if
// there is one. Call Watch after a successful Start.
func Start(path, stateDir string) (s mesh.State, warning, err error) {
	s, problem := Load(path)
	if problem == nil {
		return s, nil, nil
	}
	s, err = snapshot.Load(stateDir)
	switch {
	case err == nil:
		return s, fmt.Errorf("%w; starting from the snapshot in %s", problem, stateDir), nil
	case errors.Is(err, fs.ErrNotExist):
		return mesh.State{}, nil, problem
	}
	return mesh.State{}, nil, fmt.Errorf("%w (the snapshot is unusable too: %w)", problem, err)
}
