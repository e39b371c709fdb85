package ipam

import (
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

	"edgemesh/internal/cni/conf"
)

// adopt rewrites other plugins' records as our own. Records that it fails to write stay
// as they are.
func (s *Store) adopt() {
	var recs []Record
	var pods map[attachment]Owner
	for _, r := range s.Records() {
		if !r.foreign() || r.stuck {
			continue
		}
		if pods == nil && !r.Named() {
			pods = cachedPods(s.results)
		}
		recs = append(recs, s.adopted(r.namedBy(pods)))
	}
	_ = s.put(recs)
}

// adopted is another plugin's record as ours. Its container cannot be looked up, so a
// record of this boot counts until the next one.
func (s *Store) adopted(r Record) Record {
	r.Boot, r.Allocated = s.boot, s.now()
	if !r.modified.IsZero() {
		r.Allocated = r.modified
		if r.modified.Before(s.first) {
			r.Boot = earlierBoot
		}
	}
	return r
}

// GC frees every attachment of the network that valid does not list, with its
// interface, and returns the number of addresses freed. It continues after errors and
// returns them all.
func (s *Store) GC(network string, valid func(containerID, ifName string) bool) (int, error) {
	s.adopt()
	var errs []error
	tried, stay := map[attachment]bool{}, map[attachment]bool{}
	for _, l := range s.attachments() {
		a := attachment{l.ContainerID, l.IfName}
		if l.Network != network || valid(l.ContainerID, l.IfName) || tried[a] {
			continue
		}
		tried[a] = true
		if err := s.host.Evict(l.Owner); err != nil {
			stay[a] = true
			errs = append(errs, err)
		}
	}
	n, err := s.release(Owner{}, func(r Record) bool {
		return (r.Network == network || r.Network == "") && !valid(r.ContainerID, r.IfName) &&
			!stay[attachment{r.ContainerID, r.IfName}]
	})
	return n, errors.Join(append(errs, err)...)
}

// Reconcile makes the records match the existing interfaces: it frees the addresses of
// attachments that vanished without DEL, and writes missing records of living ones. It
// returns how many of each.
func (s *Store) Reconcile() (freed, restored int, err error) {
	s.adopt()
	now := s.now()
	var lost []Record
	for _, r := range s.records {
		// Filled in from the interface. A shortened name would be lost; DEL restores it.
		if r.torn && r.InUse() && !cutName(r.file) {
			r.torn, r.Allocated, r.Boot = false, now, s.boot
			lost = append(lost, r)
		}
	}
	slices.SortFunc(lost, func(a, b Record) int { return a.IP.Compare(b.IP) })
	if err := s.put(lost); err != nil {
		return 0, 0, err
	}
	evicted := s.evictLosers()
	freed, err = s.release(Owner{}, s.pool().abandoned)
	s.expire()
	return freed, len(lost), errors.Join(evicted, err)
}

// evictLosers removes the interfaces of ADDs that were killed before they
// noticed that another container has their address.
func (s *Store) evictLosers() error {
	s.divide(s.attachments())
	var errs []error
	for _, l := range s.losers {
		errs = append(errs, s.host.Evict(l.Owner))
	}
	return errors.Join(errs...)
}

// Forget drops the records that match, and with them the pods' claims. If one belongs to
// a living attachment it refuses with ErrInUse, unless force is set, which cuts the
// attachment off.
func (s *Store) Forget(match func(Record) bool, force bool) (int, error) {
	p := s.pool()
	var recs []Record
	for _, r := range s.Records() {
		if !match(r) {
			continue
		}
		if p.alive(r) && !force {
			return 0, fmt.Errorf("%s: %w by %s/%s, container %s", r.IP, ErrInUse, r.Namespace, r.Pod, r.ContainerID)
		}
		recs = append(recs, r)
	}
	for _, r := range recs {
		owners := []Owner{r.Owner}
		for _, l := range s.holders(r.IP) {
			owners = append(owners, l.Owner)
		}
		for _, o := range owners {
			if err := s.host.Evict(o); err != nil {
				return 0, err
			}
		}
	}
	return len(recs), s.drop(recs)
}

// Import adds records from elsewhere, such as another plugin's store, for addresses that
// have no record in this store. It returns how many.
func (s *Store) Import(recs []Record) (int, error) {
	fresh := map[netip.Addr]Record{}
	for _, r := range recs {
		if _, ok := s.records[r.IP]; ok || r.torn && !r.Named() {
			continue
		}
		switch {
		case r.torn:
			r = r.repaired(s.boot)
		case r.foreign():
			r = s.adopted(r)
		}
		r.file = ""
		if other, ok := fresh[r.IP]; !ok || better(r, other) {
			fresh[r.IP] = r
		}
	}
	list := slices.SortedFunc(maps.Values(fresh), func(a, b Record) int { return a.IP.Compare(b.IP) })
	return len(list), s.put(list)
}

// Records lists all records by address.
func (s *Store) Records() []Record {
	return slices.SortedFunc(maps.Values(s.records), func(a, b Record) int { return a.IP.Compare(b.IP) })
}

// Abandoned reports whether r is in use on paper only: its attachment is from an earlier
// boot, or has had no interface for longer than any ADD takes.
func (s *Store) Abandoned(r Record) bool { return s.pool().abandoned(r) }

// Usage is how full the blocks of one family are, in addresses.
type Usage struct {
	Blocks []netip.Prefix `json:"blocks"`
	Size   uint64         `json:"size"` // usable by pods; 1<<62 stands for more
	Used   int            `json:"used"`
	Kept   int            `json:"kept"`            // for the names of deleted pods
	Oldest time.Time      `json:"oldest,omitzero"` // release by the pod deleted longest ago
	Lost   int            `json:"lost,omitzero"`   // in use on paper only
}

// Usage returns how full blocks are, per family.
func (s *Store) Usage(blocks []netip.Prefix, excluded []conf.AddrRange) []Usage {
	p := s.pool()
	var out []Usage
	for _, f := range families(blocks) {
		u := Usage{Blocks: f, Size: usable(f, excluded)}
		u.Used, u.Kept = p.count(f)
		for _, r := range s.records {
			if !slices.ContainsFunc(f, func(b netip.Prefix) bool { return b.Contains(r.IP) }) {
				continue
			}
			if p.abandoned(r) {
				u.Lost++
			}
			if !r.InUse() && !r.torn && (u.Oldest.IsZero() || r.Released.Before(u.Oldest)) {
				u.Oldest = r.Released
			}
		}
		out = append(out, u)
	}
	return out
}

// Purge removes the store in dir: its records, and dir itself if nothing else is in it. It
// succeeds if there is no store. Nothing may use the store afterwards.
func Purge(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the address store: %w", err)
	}
	var errs []error
	left := false
	for _, e := range entries {
		if _, err := Decode(e.Name(), nil); err != nil && !strings.HasPrefix(e.Name(), tmpPrefix) && e.Name() != conf.DirectoryFile {
			left = true // not ours
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the address store: %w", err)
	}
	if left {
		return nil
	}
	return os.Remove(dir)
}

// Problem is one defect of the store.
type Problem struct {
	File string `json:"file,omitempty"`
	Text string `json:"text"`
	// Harmless problems prevent nothing and need no repair.
	Harmless bool `json:"harmless,omitempty"`
}

// Fsck lists what is wrong with the store. blocks are the node's, to find records outside
// them; nil skips that check.
func (s *Store) Fsck(blocks []netip.Prefix) []Problem {
	p := s.pool()
	var out []Problem
	add := func(file string, harmless bool, format string, args ...any) {
		out = append(out, Problem{File: file, Text: fmt.Sprintf(format, args...), Harmless: harmless})
	}
	for _, f := range s.unknown {
		if f == conf.DirectoryFile {
			continue
		}
		add(f, true, "not an address record; ignored")
	}
	for _, r := range s.extra {
		add(r.file, false, "second record of %s; %s counts", r.IP, s.records[r.IP].file)
	}
	for _, r := range s.Records() {
		switch {
		case r.stuck:
			add(r.file, false, "cannot be read; nobody gets %s", r.IP)
		case r.torn && r.file == "":
			add("", false, "%s is in use by container %s without a record", r.IP, r.ContainerID)
		case r.torn && cutName(r.file):
			add(r.file, true, "content is unusable; the address is of the pod whose name was cut to this")
		case r.torn:
			add(r.file, false, "content is unusable; the file name alone counts")
		case r.foreign():
			add(r.file, true, "record of another plugin; taken over at the next ADD")
		case p.abandoned(r):
			add(r.file, false, "in use by container %s, which has no interface", r.ContainerID)
		}
		if blocks != nil && !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(r.IP) }) {
			add(r.file, true, "%s is outside the node's blocks %v; given to nobody", r.IP, blocks)
		}
		for _, l := range s.living[r.IP] {
			if l.Elsewhere || r.torn || r.InUse() && l.sameAttachment(r.Owner) {
				continue
			}
			add(r.file, false, "%s is on an interface of container %s, the record says %s", r.IP, l.ContainerID, r.state())
		}
	}
	return out
}

// Repair fixes what can be fixed of what Fsck found: it removes second records, rewrites
// torn ones with what is known, and Reconcile does the rest.
func (s *Store) Repair() error {
	var errs []error
	for _, r := range s.extra {
		if err := s.fs.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove second record %s: %w", r.file, err))
		}
	}
	if len(s.extra) > 0 {
		errs = append(errs, s.fs.SyncDir())
	}
	s.extra = nil
	if _, _, err := s.Reconcile(); err != nil {
		errs = append(errs, err)
	}
	for _, r := range s.Records() {
		if !r.torn || r.stuck || r.InUse() || cutName(r.file) {
			continue // only the pod itself can recognise a shortened name
		}
		if r.Named() {
			errs = append(errs, s.put([]Record{r.repaired(s.boot)}))
		} else {
			errs = append(errs, s.drop([]Record{r}))
		}
	}
	return errors.Join(errs...)
}
