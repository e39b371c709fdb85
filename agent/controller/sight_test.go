package controller

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// A node is unseen when those relays that saw it last have not for two minutes; what is not known counts for it.
func TestSighting(t *testing.T) {
	type says = map[peer.ID]answer
	type step struct {
		after   time.Duration // since the former one
		says    says
		version string
		written bool // over what was said of it
		want    bool
	}
	const minute = time.Minute
	for name, steps := range map[string][]step{
		"seen": {{0, says{"r": here, "q": away}, "1", false, false}, {time.Hour, says{"r": here, "q": away}, "1", false, false}},
		"gone for two minutes": {{0, says{"r": here, "q": away}, "1", false, false}, {minute, says{"r": away, "q": away}, "1", false, false},
			{minute, says{"r": away, "q": away}, "1", false, false}, {minute, says{"r": away, "q": away}, "1", false, true}},
		"back meanwhile": {{0, says{"r": away}, "1", false, false}, {minute, says{"r": here}, "1", false, false},
			{minute, says{"r": away}, "1", false, false}, {minute, says{"r": away}, "1", false, false}, {minute, says{"r": away}, "1", false, true}},
		"its relay does not answer": {{0, says{"r": here, "q": away}, "1", false, false}, {minute, says{"r": silent, "q": away}, "1", false, false},
			{time.Hour, says{"r": silent, "q": away}, "1", false, false}},
		"another relay does not answer": {{0, says{"r": here, "q": silent}, "1", false, false}, {minute, says{"r": away, "q": silent}, "1", false, false},
			{2 * minute, says{"r": away, "q": silent}, "1", false, true}},
		"never seen, and one relay does not answer": {{0, says{"r": away, "q": silent}, "1", false, false}, {time.Hour, says{"r": away, "q": silent}, "1", false, false}},
		"never seen": {{0, says{"r": away, "q": away}, "1", false, false}, {2 * minute, says{"r": away, "q": away}, "1", false, true}},
		"its relay is no longer the cluster's": {{0, says{"r": here, "q": away}, "1", false, false}, {minute, says{"q": away}, "1", false, false},
			{minute, says{"q": away}, "1", false, false}, {2 * minute, says{"q": away}, "1", false, true}},
		"no relay": {{0, says{}, "1", false, false}, {time.Hour, says{}, "1", false, false}},
		"it writes meanwhile": {{0, says{"r": away}, "1", false, false}, {minute, says{"r": away}, "2", false, false},
			{minute, says{"r": away}, "2", false, false}, {minute, says{"r": away}, "2", false, true}},
		"it contradicts": {{0, says{"r": away}, "1", false, false}, {2 * minute, says{"r": away}, "1", false, true},
			{minute, says{"r": away}, "3", true, false}, {3 * minute, says{"r": away}, "3", false, false}, {minute, says{"r": away}, "3", false, true}},
	} {
		var s sighting
		now := time.Unix(1000, 0)
		for i, x := range steps {
			now = now.Add(x.after)
			if got := s.look(now, x.says, x.version, x.written, DefaultSight().Unseen); got != x.want {
				t.Errorf("%s, step %d: %v, want %v", name, i+1, got, x.want)
			}
		}
	}
}
