// Package findings is the vocabulary of an agent's health: what a finding is, every kind of them (catalogue.go, from which
// docs/findings.md is made), which cause hides which consequence (hide.go), and since when something is so (track.go). Package
// diagnose judges; status, doctor, the map, metrics, conditions and events only render what comes from here.
//
// A new finding is one more Kind in the catalogue, and a call of Brokenf, Warningf or Notef with its ID where the fact is known:
// in a check of doctor, or in what the agent judges continuously (diagnose.Judge). Then run
// `make reference`, which writes it into docs/findings.md.
//
//	findings.go   the finding, and its JSON
//	catalogue.go  all kinds of findings: cause, remedy, who can see them
//	hide.go       causes hide their consequences; the order; the verdict
//	judge.go      checks that run beside each other, none of which takes the others with it
//	track.go      since when each is there, and what doctor saw last
package findings

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"edgemesh/internal/wording"
)

// Severity says how serious a finding is.
type Severity string

// The severities. Only Broken makes doctor and status --check fail. A Note is how things are, and never in the verdict. OK and
// Skipped are results of checks, not findings: a check that is well, and one that could not be made.
const (
	Broken  Severity = "broken"
	Warning Severity = "warning"
	Note    Severity = "note"
	Skipped Severity = "skipped"
	OK      Severity = "ok"
)

// Wrong reports whether it needs attention.
func (s Severity) Wrong() bool { return s == Broken || s == Warning }

// The sources of findings.
const (
	Agent  = "agent"  // seen by the running agent itself
	Doctor = "doctor" // seen by doctor's probes
)

// Finding is one fact about the health of a node, or the result of a check.
type Finding struct {
	ID       string     `json:"id"` // the kind, as in the catalogue
	Severity Severity   `json:"severity"`
	Node     string     `json:"node,omitempty"`    // the node that found it, where that is another one
	Subject  string     `json:"subject,omitempty"` // what it is about: a node, a relay's peer ID, an interface; "" is this node
	Text     string     `json:"text"`              // what is wrong, and because of what
	Remedy   string     `json:"remedy,omitempty"`  // what to do about it
	Since    *time.Time `json:"since,omitempty"`   // when it was seen first; of doctor's, last
	Source   string     `json:"source,omitempty"`  // Agent or Doctor
	Victims  []string   `json:"victims,omitempty"` // what follows from it, as "ID SUBJECT" of the findings that it hides
}

// Okayf is a check that found nothing wrong, Skippedf one that could not be made.
func Okayf(id, text string, args ...any) Finding { return newf(id, OK, "", text, args) }
func Skippedf(id, remedy, text string, args ...any) Finding {
	return newf(id, Skipped, remedy, text, args)
}

// Notef is how something is, on purpose or by nature, with the remedy of its kind.
func Notef(id, text string, args ...any) Finding {
	kind, _ := Of(id)
	return newf(id, Note, kind.Remedy, text, args)
}

// Warningf is a problem that breaks nothing yet, Brokenf one that breaks traffic.
func Warningf(id, remedy, text string, args ...any) Finding {
	return newf(id, Warning, remedy, text, args)
}
func Brokenf(id, remedy, text string, args ...any) Finding {
	return newf(id, Broken, remedy, text, args)
}

func newf(id string, s Severity, remedy, text string, args []any) Finding {
	return Finding{ID: id, Severity: s, Text: wording.Sprintf(text, args...), Remedy: remedy}
}

// About is the finding with its subject.
func (f Finding) About(subject string) Finding {
	f.Subject = subject
	return f
}

// Reason is the ID as Kubernetes writes reasons of conditions and events: RelayUnreachable.
func (f Finding) Reason() string {
	out := ""
	for word := range strings.SplitSeq(f.ID, "-") {
		if word != "" {
			out += strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return out
}

// key says which findings are the same one at different times.
func (f Finding) key() [3]string { return [3]string{f.ID, f.Node, f.Subject} }

// Bounds of what comes from other machines.
const (
	maxText    = 1 << 10
	maxName    = 256
	maxVictims = 64
)

// Bounded is the finding on one line, printable, and of limited length, whoever wrote it.
func (f Finding) Bounded() Finding {
	f.ID, f.Node, f.Subject = wording.Foreign(f.ID, maxName), wording.Foreign(f.Node, maxName), wording.Foreign(f.Subject, maxName)
	f.Text, f.Remedy, f.Source = wording.Foreign(f.Text, maxText), wording.Foreign(f.Remedy, maxText), wording.Foreign(f.Source, maxName)
	f.Victims = slices.Clone(f.Victims) // others hold the finding, too
	if n := len(f.Victims) - maxVictims; n > 0 {
		f.Victims = append(f.Victims[:maxVictims], wording.Number(n)+" more")
	}
	for i, v := range f.Victims {
		f.Victims[i] = wording.Foreign(v, maxName)
	}
	return f
}

// former are the names of ID and Text until release 0.9; agents, commands and plugins of both releases read each other's.
type former struct {
	Check  string `json:"check"`
	Detail string `json:"detail"`
}

type plain Finding // without methods

// MarshalJSON writes the former names, too.
func (f Finding) MarshalJSON() ([]byte, error) {
	check := f.ID
	if k, known := Of(f.ID); known && k.Former != "" {
		check = k.Former
	}
	return json.Marshal(struct { //nolint:wrapcheck // json's own
		plain
		former
	}{plain(f), former{check, f.Text}})
}

// UnmarshalJSON reads the former names, too.
func (f *Finding) UnmarshalJSON(b []byte) error {
	var x struct {
		plain
		former
	}
	if err := json.Unmarshal(b, &x); err != nil {
		return err //nolint:wrapcheck // json's own
	}
	*f = Finding(x.plain)
	if f.ID == "" {
		f.ID = x.Check
	}
	if f.Text == "" {
		f.Text = x.Detail
	}
	return nil
}
