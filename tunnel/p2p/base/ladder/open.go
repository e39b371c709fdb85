package ladder

import "slices"

// maxTries bounds the paths on which one stream is tried, and how often a try is moved to a better path.
const maxTries = 8

// opening is a stream that is being opened: pending while there is no path for it, then tried on one path.
type opening struct {
	id     OpenID
	lane   Lane
	on     PathID   // 0: pending
	failed []PathID // paths on which it was tried without success
	moves  int      // to a better path, in the middle of a try
}

// openings are the streams that are being opened, the oldest first.
type openings []*opening

func (os openings) find(id OpenID) *opening {
	for _, o := range os {
		if o.id == id {
			return o
		}
	}
	return nil
}

func (os openings) without(id OpenID) openings {
	return slices.DeleteFunc(os, func(o *opening) bool { return o.id == id })
}

// serve returns what each stream that is being opened does next: it is tried on the best path on which it has not failed.
// Where there is none it is pending: a round of connecting is wanted unless dialing, and the stream fails when a round is over
// that made no path for it, or immediately when the peer is refused. best is Machine.best.
func (os *openings) serve(best func(Lane, func(PathID) bool) *path, dialing, over, refused bool) (out []Action, wanted bool) {
	for _, o := range slices.Clone(*os) {
		best := best(o.lane, func(p PathID) bool { return slices.Contains(o.failed, p) })
		switch {
		case best == nil && (refused || over && o.on == 0), len(o.failed) > maxTries:
			*os = os.without(o.id)
			out = append(out, Fail{Open: o.id})
		case best == nil:
			wanted = wanted || o.on == 0 && !dialing
		case best.id == o.on || o.on != 0 && o.moves == maxTries:
		default:
			if o.on != 0 {
				o.moves++
			}
			o.on = best.id
			out = append(out, Try{Open: o.id, Path: best.id})
		}
	}
	return out, wanted
}
