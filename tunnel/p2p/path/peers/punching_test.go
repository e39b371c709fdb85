package peers

import (
	"testing"
	"time"

	"edgemesh/tunnel/p2p/nat/punch"
)

func TestPunchText(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 4, 10, 0, time.UTC)
	for _, c := range []struct {
		failed int
		await  Await
		next   time.Time
		want   string
	}{
		{1, AwaitNothing, time.Time{}, "1 attempt failed, another is under way"},
		{3, AwaitTime, at, "3 attempts failed, the next at 12:04:10"},
		{3, AwaitTraffic, at, "3 attempts failed, the next with traffic after 12:04:10"},
		{3, AwaitTraffic, time.Time{}, "3 attempts failed, the next with the next traffic"},
		{2, AwaitPeer, time.Time{}, "2 attempts failed, the peer begins the next"},
	} {
		p := Punch{Tried: punch.Tried{Failed: c.failed}, Await: c.await, Next: c.next}
		if got := p.text(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
