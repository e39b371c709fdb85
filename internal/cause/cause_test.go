package cause

import (
	"encoding/json"
	"testing"
)

// Each cause of the list passes through JSON, and nothing else does: what another program writes stays out of the first line.
func TestJSON(t *testing.T) {
	for _, c := range all {
		var got Cause
		b, err := json.Marshal(c)
		if err != nil || json.Unmarshal(b, &got) != nil || got != c || c.String() == "" {
			t.Errorf("%s: %s, %v: %s", c, b, err, got)
		}
	}
	for text, want := range map[string]Cause{`""`: {}, `"\u001b[31mrm -rf"`: Other, `"of a later release"`: Other} {
		got := Full
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}
