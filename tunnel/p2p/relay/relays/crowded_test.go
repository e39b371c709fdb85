package relays

import (
	"strings"
	"testing"
)

// The second line says whether a relay is crowded; the first one, of which former versions made a percentage, does not matter.
func TestParseCrowded(t *testing.T) {
	for text, want := range map[string]bool{
		"unknown\n": false, "unknown\ncrowded\n": true, "0\n": false, "100\ncrowded\n": true, "a\ncrowded\n": true, "\ncrowded\n": true,
		"": false, "crowded\n": false, "1\ncrowded": false, "1\n\n": false, "1\nsomething new\n": false,
		"1\n2\ncrowded\n": false, strings.Repeat("0", 100) + "\ncrowded\n": false,
	} {
		if got := parseCrowded(strings.NewReader(text)); got != want {
			t.Errorf("%.20q: %v", text, got)
		}
	}
}
