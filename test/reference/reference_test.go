package reference

import (
	"maps"
	"path/filepath"
	"testing"
)

// TestReference: the pages are what the code says.
func TestReference(t *testing.T) {
	const root = "../.."
	pages := maps.Clone(Pages)
	for _, page := range figurePages {
		pages[page] = filled(page)
	}
	for page, write := range pages {
		want, err := write(root)
		if err != nil {
			t.Errorf("%s: %v", page, err)
			continue
		}
		Compare(t, filepath.Join(root, page), want)
	}
}
