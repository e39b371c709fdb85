package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
)

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
