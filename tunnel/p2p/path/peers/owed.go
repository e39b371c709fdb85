package peers

import (
	"slices"
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
)

const (
	// owedFor is how long the peer is notified of a path that was found dead here: until then its end looks alive to it.
	owedFor = 10 * time.Second
	// maxOwed bounds those paths.
	maxOwed = 8
)

// owed are paths that were found dead here. The peer is notified over another path, which may be as dead without being
// noticed yet: after a move all earlier paths are. So it is notified over each path that answers, once.
type owed []debt

type debt struct {
	token uint64 // the peer's name for the path
	until ladder.Time
	known bool            // the path was found dead; else its connection ended, and usually the peer ended it
	sent  []ladder.PathID // over which the peer was notified
}

// add notes that a path is dead: found so, or ended.
func (o *owed) add(token uint64, known bool, now ladder.Time) {
	*o = append(*o, debt{token: token, until: now + owedFor, known: known})
	*o = (*o)[max(0, len(*o)-maxOwed):]
}

// confirm says that this node has lost something, so that what has just ended may have ended here alone.
func (o owed) confirm() {
	for i := range o {
		o[i].known = true
	}
}

// over returns what to announce to the peer over a path that has answered, or is the best one left.
func (o *owed) over(path ladder.PathID, now ladder.Time) (tokens []uint64) {
	*o = slices.DeleteFunc(*o, func(d debt) bool { return now >= d.until })
	for i := range *o {
		if d := &(*o)[i]; d.known && !slices.Contains(d.sent, path) {
			d.sent = append(d.sent, path)
			tokens = append(tokens, d.token)
		}
	}
	return tokens
}
