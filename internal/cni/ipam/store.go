package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/fault"
)

// Host is what the store needs from the kernel.
type Host interface {
	// Living lists the attachments that exist in the kernel, once per address.
	Living() ([]Living, error)
	// Evict removes an attachment's interface; it succeeds if there is none.
	Evict(Owner) error
}

// Living is an address of an attachment that exists in the kernel. Its Owner lacks the
// pod's names.
type Living struct {
	IP netip.Addr
	Owner
	// Up is set once its ADD has verified its addresses.
	Up bool
	// Elsewhere means that its record is in another network's store.
	Elsewhere bool
}

// Store is the locked directory of records. No other process changes it between Open and
// Close. What was read under the lock is written only by Open and by the methods that write records.
type Store struct {
	fs     FS
	host   Host
	policy Policy
	unlock func() error
	look   bool // not locked, so nothing may be changed

	boot    string
	first   time.Time // what was written before is from an earlier boot
	results string    // libcni's cache, which knows the names of other plugins' pods
	clock   func() time.Time
	records map[netip.Addr]Record
	extra   []Record // further records of an address in records
	unknown []string // files that are not ours
	living  map[netip.Addr][]Living
	losers  []Living // that lost their address before they were started
}

// Open locks the store in dir, which it creates if it does not exist, and reads it.
// Callers must Close it. Errors may wrap ErrBusy.
func Open(dir string, host Host, policy Policy) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the address store: %w", err)
	}
	fault.Point("directory")
	unlock, err := lockDir(dir, lockWait)
	if err != nil {
		return nil, err
	}
	s := &Store{fs: dirFS{dir}, host: host, policy: policy, unlock: unlock,
		clock: time.Now, boot: bootID(), first: firstMoment(), results: DefaultResultsDir}
	err = s.load()
	if err == nil && len(s.records) == 0 { // a new directory must survive a power cut
		err = syncParents(dir)
	}
	if err != nil {
		return nil, errors.Join(err, unlock())
	}
	return s, nil
}

// Close unlocks the store.
func (s *Store) Close() error { return s.unlock() }

// pool is the store's state for deciding.
func (s *Store) pool() *pool {
	return &pool{records: s.records, living: s.living, boot: s.boot, clock: s.clock(), now: s.now()}
}

// now is a time later than every time in the store, so that the order of events survives
// a clock that restarts in the past after a power cut.
func (s *Store) now() time.Time {
	t := s.clock().UTC()
	for _, r := range s.records {
		if last := r.touched(); !last.Before(t) {
			t = last.Add(1)
		}
	}
	return t
}

// Allocate gives req one address per family and returns the records, in the order of the
// families in req.Blocks. If it fails it changes nothing. Errors wrap ErrFull, ErrWanted,
// or an error of the file system.
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
		recs = append(recs, Record{IP: a, Owner: req.Owner, Allocated: p.now, Boot: s.boot, Ranged: true})
	}
	for _, w := range req.Wanted {
		if !slices.ContainsFunc(recs, func(r Record) bool { return r.IP == w }) {
			return nil, fmt.Errorf("%w: %s: this node has no block of its family", ErrWanted, w)
		}
	}
	// Contents first, so that no old container loses its interface to a full disk; names
	// last, so that no address changes hands before that interface is gone.
	if err := s.stage(recs); err != nil {
		return nil, err
	}
	if err := s.evictOthers(req.Owner, recs); err != nil {
		s.unstage(recs)
		return nil, err
	}
	if err := s.commit(recs); err != nil {
		return nil, err
	}
	s.forgetOthers(req.Owner, recs)
	return recs, nil
}

// evictOthers removes the interfaces of other attachments with addresses of recs, both
// those that records name and those found in the kernel.
func (s *Store) evictOthers(o Owner, recs []Record) error {
	for _, r := range recs {
		var others []Owner
		if old, ok := s.records[r.IP]; ok && old.InUse() {
			others = append(others, old.Owner)
		}
		for _, l := range s.holders(r.IP) {
			others = append(others, l.Owner)
		}
		for _, other := range others {
			if other.sameAttachment(o) {
				continue
			}
			if err := s.host.Evict(other); err != nil {
				return fmt.Errorf("remove the interface of obsolete container %s: %w", other.ContainerID, err)
			}
		}
	}
	return nil
}

// holders lists this store's attachments with address a, losers included.
func (s *Store) holders(a netip.Addr) []Living {
	return slices.DeleteFunc(s.attachments(), func(l Living) bool { return l.IP != a || l.Elsewhere })
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

// Holds returns ErrLost if an address of recs no longer belongs to the attachment because
// a newer container of the same pod has taken it, and ErrShared if a network with another
// store gave it to a pod at the same moment. It locks the store in dir like Open, but
// reads only these records.
func Holds(dir string, host Host, recs []Record) error {
	unlock, err := lockDir(dir, lockWait)
	if err != nil {
		return err
	}
	if err := errors.Join(holds(dirFS{dir}, recs), unlock()); err != nil {
		return err
	}
	return shared(host, recs)
}

func holds(fs FS, recs []Record) error {
	for _, r := range recs {
		content, _, err := fs.ReadFile(r.FileName())
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

// shared looks for pods of another store with addresses of recs. The other network does
// the same once its interface exists, and our lock does not delay it, so at least one of
// the two sees the other.
func shared(host Host, recs []Record) error {
	living, err := host.Living()
	if err != nil {
		return fmt.Errorf("list pod interfaces: %w", err)
	}
	for _, l := range living {
		if l.Elsewhere && slices.ContainsFunc(recs, func(r Record) bool { return r.IP == l.IP }) {
			return fmt.Errorf("%s: %w: container %s of %s", l.IP, ErrShared, l.ContainerID, l.Network)
		}
	}
	return nil
}

var (
	// ErrFull means that every address of a family is in use by a living pod.
	ErrFull = errors.New("no free pod address")
	// ErrWanted means that a requested address cannot be given.
	ErrWanted = errors.New("requested address is not available")
	// ErrLost means that a newer container of the pod has taken its address.
	ErrLost = errors.New("address was taken over by a newer container")
	// ErrShared means that a pod of a network with another store got the same
	// address at the same moment.
	ErrShared = errors.New("address is also a pod's of another network")
	// ErrBusy means that the store's lock was not available in time.
	ErrBusy = errors.New("address store is locked")
	// ErrInUse means that a living attachment has the address.
	ErrInUse = errors.New("address is in use")
	// ErrNotRecord means that a file is not an address record.
	ErrNotRecord = errors.New("not an address record")
)

// earlierBoot marks a record from an unknown boot before the running one.
const earlierBoot = "earlier"

// bootID identifies the running boot; it is empty if the kernel does not provide it.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// firstMoment is no later than any time that the clock has shown during the running boot:
// what was written before it is from an earlier boot. The zero time means unknown.
//
// Subtracting the uptime from now is not enough. Without a battery the clock is set late,
// and pods that started before that have earlier times. The kernel created its own device
// files with the clock as it was then.
func firstMoment() time.Time {
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	info, err := os.Stat("/dev/null")
	if err != nil {
		return time.Time{}
	}
	first := time.Now().Add(-time.Duration(up.Nano()))
	if made := info.ModTime(); made.Before(first) {
		first = made
	}
	return first.UTC()
}
