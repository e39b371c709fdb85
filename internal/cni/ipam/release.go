package ipam

import (
	"errors"
	"slices"
	"time"
)

// Policy says which released addresses are kept for their pods.
type Policy struct {
	Keep func(Owner) bool // nil: every named pod
	For  time.Duration    // 0: until the pool runs short
}

// MaxKept bounds the kept records of a family: twice what a /24 can have. Each call reads
// them all, about 15 µs each, so on a large block a constant supply of new pod names
// would make ADD slow.
const MaxKept = 512

// Release removes an attachment's interface, even without records, frees its addresses,
// and keeps them for the pod's name if the policy says so. It returns how many there
// were, which may be 0.
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
	torn := 0
	for _, r := range s.records {
		if !r.InUse() || !match(r) {
			continue
		}
		if !r.Named() && o.Named() {
			r.Namespace, r.Pod, r.UID = o.Namespace, o.Pod, o.UID
		}
		if r.torn && !r.Named() && cutName(r.file) {
			torn++ // without its interface it counts as kept for the pod of that name
			continue
		}
		r.torn = false
		if r.Named() && (s.policy.Keep == nil || s.policy.Keep(r.Owner)) {
			r.Released = now
			keep = append(keep, r)
		} else {
			forget = append(forget, r)
		}
	}
	slices.SortFunc(keep, func(a, b Record) int { return a.IP.Compare(b.IP) })
	return len(keep) + len(forget) + torn, errors.Join(s.put(keep), s.drop(forget))
}

// expire drops kept records whose time is over, and the oldest ones beyond MaxKept. A
// failure is left to the next call.
func (s *Store) expire() {
	now := s.now()
	var old []Record
	kept := map[bool][]Record{} // by family
	for _, r := range s.records {
		if r.InUse() || r.torn {
			continue
		}
		if s.policy.For > 0 && now.Sub(r.Released) > s.policy.For {
			old = append(old, r)
		} else {
			kept[r.IP.Is4()] = append(kept[r.IP.Is4()], r)
		}
	}
	for _, k := range kept {
		if n := len(k) - MaxKept; n > 0 {
			slices.SortFunc(k, older)
			old = append(old, k[:n]...)
		}
	}
	_ = s.drop(old)
}

// forgetOthers drops other records kept for a pod that has just got recs. This only
// tidies up, so a failure is left to the next call.
func (s *Store) forgetOthers(o Owner, recs []Record) {
	var old []Record
	for _, r := range s.records {
		if !r.InUse() && !r.stuck && r.For(o) && slices.ContainsFunc(recs, func(n Record) bool {
			return n.IP.Is4() == r.IP.Is4() && n.IP != r.IP
		}) {
			old = append(old, r)
		}
	}
	_ = s.drop(old)
}
