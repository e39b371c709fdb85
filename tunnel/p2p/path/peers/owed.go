package peers

import (
	"slices"
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
)

const (
	// owedFor is how long the peer is told of a path that was found dead here: until then its end looks alive to it.
	owedFor = 10 * time.Second
	// maxOwed bounds the paths it is told of.
	maxOwed = 8
)

// owed are paths that were found dead here. The peer is told over another path, which may be as dead, and not found to be so
// yet: after a move all paths of before are. So it is told over each path that answers, once.
type owed []debt

type debt struct {
	token uint64 // the peer's name for the path
	until ladder.Time
	told  []ladder.PathID // over which the peer was told
}

// add notes that a path is dead, which the peer is told over the path over; 0: none.
func (o *owed) add(token uint64, over ladder.PathID, now ladder.Time) {
	*o = append(*o, debt{token: token, until: now + owedFor, told: []ladder.PathID{over}})
	*o = (*o)[max(0, len(*o)-maxOwed):]
}

// over returns what to announce to the peer over a path that has answered.
func (o *owed) over(path ladder.PathID, now ladder.Time) (tokens []uint64) {
	*o = slices.DeleteFunc(*o, func(d debt) bool { return now >= d.until })
	for i := range *o {
		if d := &(*o)[i]; !slices.Contains(d.told, path) {
			d.told = append(d.told, path)
			tokens = append(tokens, d.token)
		}
	}
	return tokens
}
