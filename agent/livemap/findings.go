package livemap

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

// The states of nodes and relays on the page, the ones to look at first. They say where members' findings are: the map judges
// nothing.
const (
	broken   = "broken"   // something broken is here, as this node or another one reports
	warning  = "warning"  // likewise, of less weight
	unknown  = "unknown"  // no fresh report
	affected = "affected" // what is wrong elsewhere concerns it
	unasked  = "unasked"  // not queried
	well     = "well"     // a fresh report, and nothing wrong in any
)

// states are in the order of their weight.
var states = []string{broken, warning, unknown, affected, unasked, well} //nolint:gochecknoglobals // a constant

// worst is the weightier one of two states; "" weighs nothing.
func worst(a, b string) string {
	if a == "" || b != "" && slices.Index(states, b) < slices.Index(states, a) {
		return b
	}
	return a
}

// finding is one cause on the page, with everything that follows from it, whoever reports it.
type finding struct {
	ID       string            `json:"id"`
	Kind     string            `json:"kind"`
	Severity findings.Severity `json:"severity"`
	Node     string            `json:"node,omitempty"`  // where it is: a node …
	Relay    string            `json:"relay,omitempty"` // … or a relay
	Subject  string            `json:"subject,omitempty"`
	Text     string            `json:"text"`
	Remedy   string            `json:"remedy,omitempty"`
	Since    string            `json:"since,omitempty"` // when the first of them saw it
	Source   string            `json:"source,omitempty"`
	By       []string          `json:"by"` // the nodes that report it
	Victims  []string          `json:"victims,omitempty"`
}

// place puts what members report to the node or relay that it is about. Of several reports about one subject the gravest has
// the word. v has nodes and relays.
func (m *model) place(v view, at time.Time) {
	for _, name := range slices.Sorted(maps.Keys(m.members)) {
		x := m.members[name]
		if x.Report == nil || at.Sub(x.at) > freshFor {
			continue
		}
		for _, f := range x.Report.Findings {
			m.add(v, name, f) // whatever node it names: a member speaks for itself
		}
	}
	for _, f := range v.findings {
		if f.Severity == findings.Note {
			continue
		}
		v.mark(f.Node, f.Relay, string(f.Severity))
		for _, by := range f.By {
			v.mark(by, "", affected)
		}
		for _, victim := range f.Victims {
			_, of, _ := strings.Cut(victim, " ")
			v.mark(of, of, affected)
		}
	}
}

// mark has a node and a relay show a state, unless theirs is graver.
func (v view) mark(name, id, state string) {
	if n, there := v.nodes[name]; there {
		n.State = worst(n.State, state)
		v.nodes[name] = n
	}
	if r, there := v.relays[id]; there {
		r.State = worst(r.State, state)
		v.relays[id] = r
	}
}

// add adds what a node reports.
func (m *model) add(v view, by string, f findings.Finding) {
	out := finding{Kind: f.ID, Severity: f.Severity, Node: by, Text: f.Text, Remedy: f.Remedy, Source: f.Source, By: []string{by}}
	subject := m.known(v, f.Subject)
	switch _, isRelay := v.relays[subject]; {
	case isRelay:
		out.Node, out.Relay = "", subject
	case v.nodes[subject].ID != "":
		out.Node = subject
	default:
		out.Subject = f.Subject
	}
	for _, victim := range f.Victims {
		kind, of, _ := strings.Cut(victim, " ")
		out.Victims = append(out.Victims, strings.TrimSpace(kind+" "+m.known(v, of)))
	}
	if f.Since != nil {
		out.Since = f.Since.UTC().Format(time.RFC3339)
	}
	out.ID = strings.Join([]string{out.Kind, out.Node, out.Relay, out.Subject}, "|")
	if had, there := v.findings[out.ID]; there {
		if worst(string(had.Severity), string(out.Severity)) == string(had.Severity) {
			had, out = out, had
		}
		out.By = append(slices.Clone(out.By), had.By...)
		out.Victims = append(slices.Clone(out.Victims), had.Victims...)
		slices.Sort(out.By)
		slices.Sort(out.Victims)
		out.By, out.Victims = slices.Compact(out.By), slices.Compact(out.Victims)
		if had.Since != "" && (out.Since == "" || had.Since < out.Since) {
			out.Since = had.Since
		}
	}
	v.findings[out.ID] = out
}

// known is what the page calls a subject: a relay by the end of its peer ID, a node by its name, anything else as it is.
func (m *model) known(v view, subject string) string {
	if id := wording.ShortID(subject); v.relays[id].ID != "" {
		return id
	}
	return cmp.Or(m.names[subject], subject)
}
