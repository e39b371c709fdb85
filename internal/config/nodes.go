package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"edgemesh/internal/membership/mesh"
)

// nodeDocument is what the key `nodes` may set for one node, in a file that many nodes
// share, such as the DaemonSet's. It excludes the node's name, the source of the
// membership, and the directories, whose mounts the nodes have in common.
type nodeDocument struct {
	CNIMode   CNIMode         `json:"cniMode"`
	CNI       CNI             `json:"cni"`
	LAN       LAN             `json:"lan"`
	Listen    []string        `json:"listen"`
	Relay     relayDocument   `json:"relay"`
	TUNQueues int             `json:"tunQueues"`
	Discovery Discovery       `json:"discovery"`
	Punch     punchDocument   `json:"punch"`
	Carrier   Carrier         `json:"carrier"`
	Uplink    uplinkDocument  `json:"uplink"`
	Forward   forwardDocument `json:"forward"`
	Proxy     string          `json:"proxy"`
	ProxyUser string          `json:"proxyCredentials"`
	Signers   []string        `json:"signers"` // in the host's own file, no API changes them
}

// checkFor checks d, which was read from data, and returns the named node's
// configuration. It checks every node's settings, so that the first agent to read a
// mistake reports it, not the last one of a rollout.
func (d document) checkFor(bad *mesh.Invalid, data []byte, name string) Config {
	c := d.check(bad)
	if len(d.Nodes) == 0 {
		return c
	}
	var tree map[string]any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		bad.Addf("", "%v", err)
		return c
	}
	common := slices.Clone(bad.Problems)
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		if err := mesh.CheckNodeName(node); err != nil {
			bad.Addf("nodes", "%v", err)
			continue
		}
		own, _ := tree["nodes"].(map[string]any)[node].(map[string]any)
		var found mesh.Invalid
		merged, err := overlaid(tree, own)
		if err != nil {
			bad.Addf("nodes."+node, "%v", err)
			continue
		}
		theirs := merged.check(&found)
		for _, p := range found.Problems {
			switch {
			case slices.Contains(common, p):
			case written(own, p.Field):
				bad.Addf("nodes."+node+"."+p.Field, "%s", p.Reason)
			default: // two keys that contradict each other
				bad.Addf(p.Field, "%s (together with nodes.%s)", p.Reason, node)
			}
		}
		if node == name {
			c, c.own = theirs, own
		}
	}
	return c
}

// Key is where a top-level key's value is written: the key itself, nodes.NAME.key, or the host's file with the key.
func (c Config) Key(key string) string {
	if written(c.host, key) {
		return filepath.Join(c.StateDir, HostFile) + ": " + key
	}
	if written(c.own, key) {
		return "nodes." + c.NodeName + "." + key
	}
	return key
}

// written reports whether own sets the field's top-level key.
func written(own map[string]any, field string) bool {
	key := field
	if i := strings.IndexAny(field, ".["); i >= 0 {
		key = field[:i]
	}
	_, ok := own[key]
	return ok
}

// overlaid is the document in tree, overridden by own.
func overlaid(tree, own map[string]any) (document, error) {
	d := defaults
	j, err := json.Marshal(overlay(tree, own))
	if err == nil {
		err = json.Unmarshal(j, &d)
	}
	if err != nil {
		err = fmt.Errorf("read the node's configuration: %w", err)
	}
	return d, err
}

// overlay is base with the keys of over: mappings are merged, anything else is replaced.
func overlay(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range over {
		below, ok := out[k].(map[string]any)
		if m, isMap := v.(map[string]any); ok && isMap {
			v = overlay(below, m)
		}
		if v != nil { // null means absent
			out[k] = v
		}
	}
	return out
}
