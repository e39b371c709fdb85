package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

func tmpName(i int) string { return fmt.Sprintf("%s%d", tmpPrefix, i) }

// put replaces the records of the given addresses.
func (s *Store) put(recs []Record) error {
	if len(recs) == 0 {
		return nil
	}
	if err := s.stage(recs); err != nil {
		return err
	}
	return s.commit(recs)
}

// stage writes the contents of recs to the disk without changing any record, so that a
// full disk changes nothing.
func (s *Store) stage(recs []Record) error {
	for i, r := range recs {
		if err := s.fs.WriteSync(tmpName(i), r.Encode()); err != nil {
			s.unstage(recs[:i+1])
			return fmt.Errorf("write the record of %s: %w", r.IP, err)
		}
	}
	return nil
}

// unstage removes temporary files. The next load removes any that remain.
func (s *Store) unstage(recs []Record) {
	for i := range recs {
		_ = s.fs.Remove(tmpName(i))
	}
}

// commit renames what was staged to the records' names.
func (s *Store) commit(recs []Record) (err error) {
	defer func() {
		if err != nil {
			s.unstage(recs)
		}
	}()
	moved := false
	for _, r := range recs {
		m, err := s.clearWay(r)
		if err != nil {
			return fmt.Errorf("replace the record of %s: %w", r.IP, err)
		}
		moved = moved || m
	}
	if moved {
		if err := s.fs.SyncDir(); err != nil {
			return fmt.Errorf("sync the address store: %w", err)
		}
	}
	for i, r := range recs {
		r.file, r.torn = r.FileName(), false
		if err := s.fs.Rename(tmpName(i), r.file); err != nil {
			return fmt.Errorf("write the record of %s: %w", r.IP, err)
		}
		s.records[r.IP] = r
	}
	if err := s.fs.SyncDir(); err != nil {
		return fmt.Errorf("sync the address store: %w", err)
	}
	return nil
}

// clearWay gives the one file of r's address r's name, whatever its content: at no moment
// and after no power cut does an address have two files or, once it had one, none. It
// reports whether a name changed.
func (s *Store) clearWay(r Record) (moved bool, err error) {
	name := r.FileName()
	for _, x := range s.extra {
		if x.IP != r.IP || x.file == name {
			continue
		}
		if err := s.fs.Remove(x.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return moved, err
		}
		moved = true
	}
	s.extra = slices.DeleteFunc(s.extra, func(x Record) bool { return x.IP == r.IP })
	old, ok := s.records[r.IP]
	if !ok || old.file == "" || old.file == name {
		return moved, nil
	}
	if err := s.fs.Rename(old.file, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return moved, err
	}
	old.file = name
	s.records[r.IP] = old
	return true, nil
}

// drop removes records permanently. It renames them first, so that a call that finds one
// left behind knows of a removal that may not be on the disk yet.
func (s *Store) drop(recs []Record) error {
	aside := 0
	for _, r := range recs {
		if r.file != "" {
			var err error
			if r.stuck { // it may be a directory, which must not block this
				err = s.fs.Remove(r.file)
			} else if err = s.fs.Rename(r.file, tmpName(aside)); err == nil {
				aside++
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the record of %s: %w", r.IP, err)
			}
		}
		delete(s.records, r.IP)
	}
	if aside == 0 {
		return nil
	}
	if err := s.fs.SyncDir(); err != nil {
		return fmt.Errorf("sync the address store: %w", err)
	}
	s.unstage(recs[:aside])
	return nil
}
