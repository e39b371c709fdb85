package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const tmpPrefix = ".tmp"

// load reads all records. A file that is not a readable record never stops it; see Decode.
func (s *Store) load() error {
	if err := s.read(); err != nil {
		return err
	}
	living, err := s.host.Living()
	if err != nil {
		return fmt.Errorf("list pod interfaces: %w", err)
	}
	s.divide(living)
	for ip := range s.living {
		s.believe(ip)
	}
	return nil
}

// divide separates the attachments that live from those that have lost an address.
func (s *Store) divide(living []Living) {
	lost := map[Owner]bool{}
	for _, l := range living {
		lost[l.Owner] = lost[l.Owner] || s.lost(l)
	}
	s.living, s.losers = map[netip.Addr][]Living{}, nil
	for _, l := range living {
		if lost[l.Owner] {
			s.losers = append(s.losers, l)
		} else {
			s.living[l.IP] = append(s.living[l.IP], l)
		}
	}
}

// attachments lists the addresses of all existing attachments, losers included.
func (s *Store) attachments() []Living {
	return slices.Concat(append(slices.Collect(maps.Values(s.living)), s.losers)...)
}

// lost reports whether l, according to its record, lost its address before it was
// started. Then it never will be started.
func (s *Store) lost(l Living) bool {
	r, ok := s.records[l.IP]
	return ok && !l.Up && !l.Elsewhere && !r.stuck && !r.torn && !(r.InUse() && r.sameAttachment(l.Owner))
}

// read reads all records from the disk.
func (s *Store) read() error {
	names, err := s.fs.ReadDir()
	if s.look && errors.Is(err, fs.ErrNotExist) {
		err = nil // no pod has had an address yet
	}
	if err != nil {
		return fmt.Errorf("read the address store: %w", err)
	}
	slices.Sort(names)
	if !s.look {
		if names, err = s.sweep(names); err != nil {
			return err
		}
	}
	s.records, s.extra, s.unknown = make(map[netip.Addr]Record, len(names)), nil, nil
	for _, name := range names {
		content, modified, err := s.fs.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		r, derr := readRecord(name, content, modified)
		if derr != nil {
			s.unknown = append(s.unknown, name)
			continue
		}
		r.stuck = err != nil
		if other, ok := s.records[r.IP]; ok {
			if better(other, r) {
				r, other = other, r
			}
			s.extra = append(s.extra, other)
		}
		s.records[r.IP] = r
	}
	return nil
}

// sweep removes what a killed call left behind, and first syncs that call's renames:
// otherwise a power cut might undo them but not later changes that depend on them.
func (s *Store) sweep(names []string) ([]string, error) {
	var left []string
	rest := slices.DeleteFunc(names, func(name string) bool {
		tmp := strings.HasPrefix(name, tmpPrefix)
		if tmp {
			left = append(left, name)
		}
		return tmp
	})
	if len(left) == 0 {
		return rest, nil
	}
	if err := s.fs.SyncDir(); err != nil {
		return nil, fmt.Errorf("sync the address store: %w", err)
	}
	for _, name := range left {
		_ = s.fs.Remove(name) // on failure the next call does it
	}
	return rest, nil
}

// believe fills in a lost or torn record from the interface that has its address; one
// that is up takes precedence.
func (s *Store) believe(ip netip.Addr) {
	r, ok := s.records[ip]
	if ok && (!r.torn || r.stuck) {
		return
	}
	var holder Living
	for _, l := range s.living[ip] {
		if !l.Elsewhere && (holder.ContainerID == "" || l.Up && !holder.Up) {
			holder = l
		}
	}
	if holder.ContainerID == "" {
		return
	}
	n := Record{IP: ip, Owner: holder.Owner, file: r.file, modified: r.modified, torn: true}
	n.Namespace, n.Pod = r.Namespace, r.Pod
	s.records[ip] = n
}

// better reports whether record a says more about their address than b.
func better(a, b Record) bool {
	if a.stuck != b.stuck {
		return a.stuck
	}
	if a.torn != b.torn {
		return b.torn
	}
	if a.InUse() != b.InUse() {
		return a.InUse()
	}
	return older(b, a) <= 0
}

// Look reads the records in dir without waiting for the lock, for callers that do not
// depend on calls in progress. A directory that does not exist has none.
func Look(dir string) ([]Record, error) {
	s := &Store{fs: dirFS{dir}, look: true}
	if err := s.read(); err != nil {
		return nil, err
	}
	return s.Records(), nil
}

// Peek is Look with the living attachments, for Records, Abandoned and Usage. It
// may see a call in progress half done.
func Peek(dir string, host Host) (*Store, error) {
	s := &Store{fs: dirFS{dir}, host: host, look: true, clock: time.Now, boot: bootID()}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, nil
}

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
