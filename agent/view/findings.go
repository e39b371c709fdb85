package view

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

func severityColour(s findings.Severity) colour {
	switch s {
	case findings.OK:
		return green
	case findings.Warning:
		return yellow
	case findings.Note, findings.Skipped:
		return dim
	}
	return red
}

// Verdict is the first line of a status: whether all is well, and if not, what is wrong first.
func Verdict(s control.Status) string {
	wrong := findings.Only(s.Found(), findings.Broken, findings.Warning)
	if len(wrong) > 0 {
		return findings.Trouble(wrong)
	}
	groups := byPath(s.Peers)
	idle := len(groups[Idle]) + s.Idle
	counts := slices.Insert(inUse(groups), 0, wording.Count(len(s.Peers)-len(groups[Idle]), "peer")+" in use")
	text := "OK: " + strings.Join(counts, ", ")
	if idle > 0 {
		text += fmt.Sprintf("; %d idle, not checked", idle)
	}
	return text + "; " + wording.Count(len(s.Relays), "relay")
}

// Next is the command to continue with.
func Next(s control.Status) string {
	for _, f := range s.Found() {
		switch {
		case f.Severity.Wrong() && f.ID == "peer-offline" && f.Subject != "": // from here it is not reached
			return "edgemesh-agent doctor, on " + clean(f.Subject)
		case f.Severity.Wrong() && f.ID == "peer-unreachable" && f.Subject != "":
			return "edgemesh-agent doctor " + clean(f.Subject)
		case f.Severity.Wrong():
			return "edgemesh-agent doctor"
		}
	}
	return "edgemesh-agent doctor probes actively; status NODE shows one peer"
}

const findingIndent = 9 // columns of a severity

// finding prints one with its age, remedy and victims; now zero: without the age. said: its text is in the verdict.
func finding(w io.Writer, on Screen, f findings.Finding, now time.Time, said bool) {
	text := ": " + f.Where() + f.Text
	if said {
		text = ""
	}
	if f.Since != nil && !now.IsZero() {
		age := Duration(now.Sub(*f.Since))
		if f.Source == findings.Doctor {
			text += " (seen by doctor " + age + " ago)"
		} else {
			text += " (for " + age + ")"
		}
	}
	on.Line(w, severityColour(f.Severity), fmt.Sprintf("%-*s", findingIndent, f.Severity), f.ID+text)
	if f.Remedy != "" && f.Severity != findings.OK {
		on.Line(w, plain, strings.Repeat(" ", findingIndent)+"→ ", f.Remedy)
	}
	if len(f.Victims) > 0 {
		on.Line(w, plain, strings.Repeat(" ", findingIndent)+"therefore: ", wording.Most(f.Victims, 8))
	}
}

// Findings prints all, with remedies: what doctor or netcheck found.
func Findings(w io.Writer, on Screen, all []findings.Finding) {
	for _, f := range all {
		finding(w, on, f, time.Time{}, false)
	}
}

// Doctor prints a verdict, what is broken, then warnings and notes, and how many checks are well; verbose lists them.
func Doctor(w io.Writer, on Screen, all []findings.Finding, verbose bool) {
	wrong := findings.Only(all, findings.Broken, findings.Warning)
	well, skipped := findings.Only(all, findings.OK), findings.Only(all, findings.Skipped)
	counts := wording.Count(len(well), "check") + " well"
	if len(skipped) > 0 {
		counts += fmt.Sprintf(", %d skipped", len(skipped))
	}
	head, c := "OK: "+counts, green
	if len(wrong) > 0 {
		head, c = findings.Trouble(wrong), severityColour(wrong[0].Severity)
	}
	on.Line(w, c, "", head)
	for i, f := range append(wrong, findings.Only(all, findings.Note)...) {
		finding(w, on, f, time.Time{}, i == 0 && f.Severity.Wrong())
	}
	switch {
	case verbose:
		Findings(w, on, append(skipped, well...))
	case len(wrong) > 0 && len(well)+len(skipped) > 0:
		fmt.Fprintln(w, counts+" (--verbose lists them)")
	}
}

// wrong prints a status's findings, then what runs degraded.
func wrong(w io.Writer, on Screen, s control.Status, now time.Time) {
	for i, f := range s.Found() {
		finding(w, on, f, now, i == 0 && f.Severity.Wrong())
	}
	if len(s.Fallbacks) == 0 {
		return
	}
	fmt.Fprintln(w, on.Paint(bold, "DEGRADED"))
	for _, f := range s.Fallbacks {
		on.Line(w, yellow, "  ", f.What+": "+f.Effect)
		on.Line(w, plain, "    → ", f.Remedy)
	}
}
