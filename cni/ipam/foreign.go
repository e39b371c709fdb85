package ipam

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// DefaultResultsDir is where libcni, and with it containerd and CRI-O, caches the results
// of ADDs.
const DefaultResultsDir = "/var/lib/cni/results"

// ReadForeign reads the records of another plugin's store, host-local's or OpenYurt's, in
// dir. host-local's do not name the pods; the results that libcni has cached in the
// directory results do, as long as they exist.
func ReadForeign(dir, results string) ([]Record, error) {
	d := dirFS{dir}
	names, err := d.ReadDir()
	if err != nil {
		return nil, fmt.Errorf("read the records in %s: %w", dir, err)
	}
	pods := cachedPods(results)
	var out []Record
	for _, name := range names {
		content, modified, err := d.ReadFile(name)
		if err != nil {
			continue
		}
		r, err := readRecord(name, content, modified)
		if err != nil {
			continue // host-local's lock and last_reserved_ip
		}
		out = append(out, r.namedBy(pods))
	}
	return out, nil
}

// namedBy is r with its pod's names from pods, if r has none.
func (r Record) namedBy(pods map[attachment]Owner) Record {
	if o, ok := pods[attachment{r.ContainerID, r.IfName}]; ok && !r.Named() {
		r.Namespace, r.Pod, r.UID = o.Namespace, o.Pod, o.UID
	}
	return r
}

type attachment struct{ containerID, ifName string }

// cachedPods reads the pods' names from libcni's cache. It skips what it cannot read,
// because the names are only helpful, not necessary.
func cachedPods(dir string) map[attachment]Owner {
	out := map[attachment]Owner{}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		var c struct {
			ContainerID string      `json:"containerId"`
			IfName      string      `json:"ifName"`
			Args        [][2]string `json:"cniArgs"`
		}
		if json.Unmarshal(b, &c) != nil {
			continue
		}
		var o Owner
		for _, kv := range c.Args {
			switch kv[0] {
			case "K8S_POD_NAMESPACE":
				o.Namespace = kv[1]
			case "K8S_POD_NAME":
				o.Pod = kv[1]
			case "K8S_POD_UID":
				o.UID = kv[1]
			}
		}
		if o.Named() {
			out[attachment{c.ContainerID, c.IfName}] = o
		}
	}
	return out
}
