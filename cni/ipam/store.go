package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// Host is what the store must know and do beyond its files.
type Host interface {
	// Living lists the attachments that exist in the kernel by address.
	Living() (map[netip.Addr]Owner, error)
	// Evict removes an attachment's interface; one that is gone is no error.
	Evict(Owner) error
}

// Policy says which released addresses are kept for their pods.
type Policy struct {
	Keep func(Owner) bool // nil: every named pod
	For  time.Duration    // 0: until the pool gets short
}

// maxKept bounds the kept records, so that a block of thousands of addresses
// on a node with short-lived pods does not slow every ADD down.
const maxKept = 4096

// Store is the locked folder of records. Nobody else changes it between Open
// and Close.
type Store struct {
	fs     FS
	host   Host
	policy Policy
	unlock func() error

	boot    string
	clock   func() time.Time
	records map[netip.Addr]Record
	extra   []Record // further records of an address in records
	unknown []string // files that are not ours
	living  map[netip.Addr]Owner
}

// Open locks the store in folder dir, which is made if it does not exist, and
// reads it. Callers must Close it. Errors may wrap ErrBusy.
func Open(dir string, host Host, policy Policy) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the address store: %w", err)
	}
	unlock, err := lockDir(dir, lockWait)
	if err != nil {
		return nil, err
	}
	s := &Store{fs: dirFS{dir}, host: host, policy: policy, unlock: unlock, clock: time.Now, boot: bootID()}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, unlock())
	}
	return s, nil
}

// Close unlocks the store.
func (s *Store) Close() error { return s.unlock() }

const tmpPrefix = ".tmp"

// load reads all records. A file that cannot be read as a record never stops
// it; see Decode.
func (s *Store) load() error {
	names, err := s.fs.ReadDir()
	if err != nil {
		return fmt.Errorf("read the address store: %w", err)
	}
	slices.Sort(names)
	s.records, s.extra, s.unknown = map[netip.Addr]Record{}, nil, nil
	for _, name := range names {
		if strings.HasPrefix(name, tmpPrefix) { // left by a killed process
			_ = s.fs.Remove(name)
			continue
		}
		content, err := s.fs.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		r, derr := Decode(name, content)
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
	if s.living, err = s.host.Living(); err != nil {
		return fmt.Errorf("list pod interfaces: %w", err)
	}
	for ip, o := range s.living {
		s.believe(ip, o)
	}
	return nil
}

// believe fills a lost or torn record from the interface that has its address.
func (s *Store) believe(ip netip.Addr, o Owner) {
	r, ok := s.records[ip]
	if ok && (!r.torn || r.stuck) {
		return
	}
	n := Record{IP: ip, Owner: o, file: r.file, torn: true}
	n.Namespace, n.Pod = r.Namespace, r.Pod
	if n.FileName() != n.file { // a cut name is no name
		n.Namespace, n.Pod = "", ""
	}
	s.records[ip] = n
}

// better reports whether record a tells more about their address than b.
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

// pool is the store's state for deciding.
func (s *Store) pool() *pool {
	return &pool{records: s.records, living: s.living, boot: s.boot, clock: s.clock(), now: s.now()}
}

// now is a time later than every time in the store, so that the order of
// events survives a clock that starts in the past after a power cut.
func (s *Store) now() time.Time {
	t := s.clock().UTC()
	for _, r := range s.records {
		if last := r.touched(); !last.Before(t) {
			t = last.Add(1)
		}
	}
	return t
}

// Allocate gives req one address per family and returns the records, in the
// order of the families in req.Blocks. Nothing is changed when it fails.
// Errors wrap ErrFull, ErrWanted, or what the file system said.
func (s *Store) Allocate(req Request) ([]Record, error) {
	s.adopt()
	s.expire()
	p := s.pool()
	var recs []Record
	for _, blocks := range families(req.Blocks) {
		a, err := p.choose(req, blocks)
		if err != nil {
			return nil, err
		}
		recs = append(recs, Record{IP: a, Owner: req.Owner, Allocated: p.now, Boot: s.boot})
	}
	for _, w := range req.Wanted {
		if !slices.ContainsFunc(recs, func(r Record) bool { return r.IP == w }) {
			return nil, fmt.Errorf("%w: %s: this node has no block of its family", ErrWanted, w)
		}
	}
	for _, r := range recs {
		old, ok := s.records[r.IP]
		if ok && old.InUse() && !old.sameAttachment(req.Owner) {
			if err := s.host.Evict(old.Owner); err != nil {
				return nil, fmt.Errorf("remove the interface of obsolete container %s: %w", old.ContainerID, err)
			}
		}
	}
	if err := s.put(recs); err != nil {
		return nil, err
	}
	s.forgetOthers(req.Owner, recs)
	return recs, nil
}

// families splits blocks into those of the first block's family and the rest.
func families(blocks []netip.Prefix) [][]netip.Prefix {
	var out [][]netip.Prefix
	for _, b := range blocks {
		i := slices.IndexFunc(out, func(f []netip.Prefix) bool { return f[0].Addr().Is4() == b.Addr().Is4() })
		if i < 0 {
			out = append(out, nil)
			i = len(out) - 1
		}
		out[i] = append(out[i], b)
	}
	return out
}

// Holds reports, as ErrLost, that an address of recs is no longer the
// attachment's: a newer container of the same pod took it meanwhile. It locks
// the store in folder dir like Open, but reads only these records.
func Holds(dir string, recs []Record) error {
	unlock, err := lockDir(dir, lockWait)
	if err != nil {
		return err
	}
	return errors.Join(holds(dirFS{dir}, recs), unlock())
}

func holds(fs FS, recs []Record) error {
	for _, r := range recs {
		content, err := fs.ReadFile(r.FileName())
		if err != nil {
			return fmt.Errorf("%s: %w: %w", r.IP, ErrLost, err)
		}
		now, err := Decode(r.FileName(), content)
		if err != nil || !now.InUse() || !now.sameAttachment(r.Owner) {
			return fmt.Errorf("%s: %w", r.IP, ErrLost)
		}
	}
	return nil
}

// put replaces the records of the given addresses. All contents are on the
// disk before the first name changes, so a full disk changes nothing.
func (s *Store) put(recs []Record) (err error) {
	tmp := func(i int) string { return fmt.Sprintf("%s%d", tmpPrefix, i) }
	for i, r := range recs {
		if err := s.fs.WriteSync(tmp(i), r.Encode()); err != nil {
			for j := range i + 1 {
				_ = s.fs.Remove(tmp(j))
			}
			return fmt.Errorf("write the record of %s: %w", r.IP, err)
		}
	}
	renamed := false
	for _, r := range recs {
		// One file per address, at every moment and after every power cut: a
		// file under another name goes first, for good.
		for _, old := range append(s.extraOf(r.IP), s.records[r.IP]) {
			if old.file != "" && old.file != r.FileName() {
				if err := s.fs.Remove(old.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("replace the record of %s: %w", r.IP, err)
				}
				renamed = true
			}
		}
	}
	if renamed {
		if err := s.fs.SyncDir(); err != nil {
			return fmt.Errorf("sync the address store: %w", err)
		}
	}
	for i, r := range recs {
		r.file, r.torn = r.FileName(), false
		if err := s.fs.Rename(tmp(i), r.file); err != nil {
			return fmt.Errorf("write the record of %s: %w", r.IP, err)
		}
		s.records[r.IP] = r
		s.extra = slices.DeleteFunc(s.extra, func(x Record) bool { return x.IP == r.IP })
	}
	if err := s.fs.SyncDir(); err != nil {
		return fmt.Errorf("sync the address store: %w", err)
	}
	return nil
}

func (s *Store) extraOf(a netip.Addr) []Record {
	var out []Record
	for _, r := range s.extra {
		if r.IP == a {
			out = append(out, r)
		}
	}
	return out
}

// drop removes records for good.
func (s *Store) drop(recs []Record) error {
	for _, r := range recs {
		if r.file != "" {
			if err := s.fs.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the record of %s: %w", r.IP, err)
			}
		}
		delete(s.records, r.IP)
	}
	if len(recs) == 0 {
		return nil
	}
	if err := s.fs.SyncDir(); err != nil {
		return fmt.Errorf("sync the address store: %w", err)
	}
	return nil
}

// Release frees all addresses of an attachment after its interface is gone,
// and keeps them for the pod's name where the policy says so. It returns how
// many there were; none is no error. The interface goes even without records.
func (s *Store) Release(o Owner) (int, error) {
	if err := s.host.Evict(o); err != nil {
		return 0, err
	}
	return s.release(o, func(r Record) bool {
		return r.ContainerID == o.ContainerID && r.IfName == o.IfName && (r.Network == o.Network || r.Network == "")
	})
}

// release frees the addresses in use that match; their interfaces are gone.
// Records that do not know their pod's name take o's.
func (s *Store) release(o Owner, match func(Record) bool) (int, error) {
	now := s.now()
	var keep, forget []Record
	for _, r := range s.records {
		if !r.InUse() || !match(r) {
			continue
		}
		r.torn = false
		if !r.Named() && o.Named() {
			r.Namespace, r.Pod, r.UID = o.Namespace, o.Pod, o.UID
		}
		if r.Named() && (s.policy.Keep == nil || s.policy.Keep(r.Owner)) {
			r.Released = now
			keep = append(keep, r)
		} else {
			forget = append(forget, r)
		}
	}
	slices.SortFunc(keep, func(a, b Record) int { return a.IP.Compare(b.IP) })
	return len(keep) + len(forget), errors.Join(s.put(keep), s.drop(forget))
}

// expire forgets names whose time is over and the oldest beyond maxKept. A
// failure is left to the next call.
func (s *Store) expire() {
	now := s.now()
	var kept, old []Record
	for _, r := range s.records {
		if r.InUse() || r.torn {
			continue
		}
		if s.policy.For > 0 && now.Sub(r.Released) > s.policy.For {
			old = append(old, r)
		} else {
			kept = append(kept, r)
		}
	}
	if n := len(kept) - maxKept; n > 0 {
		slices.SortFunc(kept, older)
		old = append(old, kept[:n]...)
	}
	_ = s.drop(old)
}

// forgetOthers drops what else was kept for a pod that has just got recs. It
// is tidiness only, so a failure is left to the next call.
func (s *Store) forgetOthers(o Owner, recs []Record) {
	var old []Record
	for _, r := range s.records {
		if !r.InUse() && r.For(o) && slices.ContainsFunc(recs, func(n Record) bool {
			return n.IP.Is4() == r.IP.Is4() && n.IP != r.IP
		}) {
			old = append(old, r)
		}
	}
	_ = s.drop(old)
}
