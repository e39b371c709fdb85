package config

import (
	"cmp"
	"fmt"

	"edgemesh/internal/membership/mesh"
)

// GuessMode says whether ports of a peer's NAT are guessed.
type GuessMode string

const (
	// GuessAuto guesses where one side's NAT gives random ports and nothing else makes a direct path. It is the default.
	GuessAuto GuessMode = "auto"
	// GuessNever is for links that are metered or run on batteries, and for carriers that count mappings.
	GuessNever GuessMode = "never"
)

// Punch is the `punch` key: optional means to get a direct path.
type Punch struct {
	Guess GuessMode
	// Former says what to write instead of `punch.birthday`, which is accepted for one release; "" if it is not written.
	Former string
}

// punchDocument is the key as written.
type punchDocument struct {
	Guess    GuessMode `json:"guess"`
	Birthday *bool     `json:"birthday"`
}

// check is what d means. What `birthday` switched on or off stays so, unless `guess` says otherwise.
func (d punchDocument) check(bad *mesh.Invalid) Punch {
	p := Punch{Guess: cmp.Or(d.Guess, GuessAuto)}
	if p.Guess != GuessAuto && p.Guess != GuessNever {
		bad.Addf("punch.guess", "%q is neither %q nor %q", d.Guess, GuessAuto, GuessNever)
	}
	if d.Birthday == nil {
		return p
	}
	if d.Guess == "" && !*d.Birthday {
		p.Guess = GuessNever
	}
	p.Former = fmt.Sprintf("remove punch.birthday and write punch: {guess: %s}", p.Guess)
	return p
}
