package relayservice

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
)

// FuzzReadID: a question names a peer, or is refused.
func FuzzReadID(f *testing.F) {
	_, id := keytest.New(f)
	f.Add([]byte(id.String() + "\n"))
	f.Add([]byte("\n"))
	f.Add(bytes.Repeat([]byte{'1'}, 2*maxID))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := readID(bytes.NewReader(b))
		if err == nil && p.Validate() != nil {
			t.Errorf("%q names nobody", p)
		}
	})
}

// A member that asks without end is refused, others are not, and what is remembered of them is bounded by those who asked
// lately.
func TestQuestionsAreBounded(t *testing.T) {
	var b budgets
	now := time.Now()
	n := 0
	for b.take("eager", now) {
		n++
	}
	if n != askBurst || !b.take("calm", now) {
		t.Errorf("%d questions in a row", n)
	}
	if now = now.Add(10 * askEvery); !b.take("eager", now) {
		t.Error("refused although time has passed")
	}
	for i := range 10 * maxAskers {
		now = now.Add(askEvery)
		if !b.take(peer.ID(fmt.Sprint(i)), now) {
			t.Fatal("a calm member is refused")
		}
	}
	if len(b.of) > maxAskers {
		t.Errorf("%d members are remembered", len(b.of))
	}
}
