package reference

import (
	"path/filepath"
	"testing"
)

// TestReference: the pages are what the code says.
func TestReference(t *testing.T) {
	const root = "../.."
	for page, write := range Pages {
		want, err := write(root)
		if err != nil {
			t.Errorf("%s: %v", page, err)
			continue
		}
		Compare(t, filepath.Join(root, page), want)
	}
}
