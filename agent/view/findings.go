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
		fmt.Fprintf(w, "%s %-12s %s\n", on.paint(severityColour(x.Severity), fmt.Sprintf("%-8s", x.Severity)), clean(x.ID), clean(where+x.Text))
		if x.Remedy != "" && x.Severity != findings.OK {
			fmt.Fprintf(w, "%-8s %-12s → %s\n", "", "", clean(x.Remedy))
		}
	}
}
