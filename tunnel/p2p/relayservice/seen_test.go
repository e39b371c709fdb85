package relayservice

import (
	"bytes"
	"testing"

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
