package view

import (
	"fmt"
	"io"

	"edgemesh/agent/findings"
)

func severityColour(s findings.Severity) colour {
	switch s {
	case findings.OK:
		return green
	case findings.Warning:
		return yellow
	}
	return red
}

// Findings prints what doctor found, with the remedies.
func Findings(w io.Writer, on Screen, all []findings.Finding) {
	for _, x := range all {
		where := ""
		if x.Node != "" {
			where = "on " + x.Node + ": "
		}
		on.Line(w, severityColour(x.Severity), fmt.Sprintf("%-8s %-12s ", x.Severity, clean(x.ID)), where+x.Text)
		if x.Remedy != "" && x.Severity != findings.OK {
			on.Line(w, plain, fmt.Sprintf("%-8s %-12s → ", "", ""), x.Remedy)
		}
	}
}
