package view

import (
	"fmt"
	"io"

	"edgemesh/agent/control"
)

func severityColour(s control.Severity) colour {
	switch s {
	case control.OK:
		return green
	case control.Warning:
		return yellow
	}
	return red
}

// Findings prints what doctor found, with the remedies.
func Findings(w io.Writer, on Screen, all []control.Finding) {
	for _, x := range all {
		where := ""
		if x.Node != "" {
			where = "on " + x.Node + ": "
		}
		fmt.Fprintf(w, "%s %-12s %s\n", on.paint(severityColour(x.Severity), fmt.Sprintf("%-8s", x.Severity)), clean(x.Check), clean(where+x.Detail))
		if x.Remedy != "" && x.Severity != control.OK {
			fmt.Fprintf(w, "%-8s %-12s → %s\n", "", "", clean(x.Remedy))
		}
	}
}
