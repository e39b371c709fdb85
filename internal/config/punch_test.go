package config

import (
	"strings"
	"testing"
)

// What a former file switched on or off stays so for one release, and a warning says what to write.
func TestPunchOfFormerFiles(t *testing.T) {
	const common = "membership: {file: /m.yaml}\nnodeName: edge-1\n"
	for _, c := range []struct {
		yaml   string
		guess  GuessMode
		former string
	}{
		{"", GuessAuto, ""},
		{"punch: {}", GuessAuto, ""},
		{"punch: {guess: auto}", GuessAuto, ""},
		{"punch: {guess: never}", GuessNever, ""},
		{"punch: {birthday: true}", GuessAuto, "{guess: auto}"},
		{"punch: {birthday: false}", GuessNever, "{guess: never}"},
		{"punch: {birthday: true, guess: never}", GuessNever, "{guess: never}"},
		{"punch: {birthday: true}\nnodes: {edge-1: {punch: {guess: never}}}", GuessNever, "{guess: never}"},
		{"nodes: {edge-1: {punch: {birthday: true}}, edge-2: {punch: {guess: never}}}", GuessAuto, "{guess: auto}"},
		{"nodes: {edge-2: {punch: {birthday: false}}}", GuessAuto, ""},
	} {
		got, err := Parse("agent.yaml", []byte(common+c.yaml), "")
		if err != nil || got.Punch.Guess != c.guess || (got.Punch.Former == "") != (c.former == "") || !strings.HasSuffix(got.Punch.Former, c.former) {
			t.Errorf("%s: %+v, %v; want %s", c.yaml, got.Punch, err, c.guess)
		}
	}
}
