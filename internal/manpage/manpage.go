// Package manpage makes man pages in roff (man(7)) from the text of help: cobra's generator links a parser of Markdown and one
// of YAML into each program.
package manpage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Page is one manual page. It has no date: the same program makes the same page.
type Page struct {
	Name, Source string // the command; its program and version
	Short        string // what it does, in a line
	Help         string // shown as it is; a short line that begins in column one and ends in a colon begins a section
	Also         []string
}

// Write writes the page into dir, which is made if it does not exist.
func (p Page) Write(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, p.Name+".1"), []byte(p.roff()), 0o644) //nolint:gosec // for everybody
	}
	if err != nil {
		return fmt.Errorf("man pages: %w", err)
	}
	return nil
}

func (p Page) roff() string {
	var b strings.Builder
	name := escape(p.Name)
	fmt.Fprintf(&b, ".nh\n.TH %s 1 \"\" \"%s\" EdgeMesh\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n.nf\n", strings.ToUpper(name), escape(p.Source), name, escape(p.Short))
	for _, line := range strings.Split(strings.Trim(p.Help, "\n"), "\n") {
		if title, is := strings.CutSuffix(line, ":"); is && !strings.HasPrefix(title, " ") && strings.Count(title, " ") < 3 {
			fmt.Fprintf(&b, ".fi\n.SH %s\n.nf\n", escape(strings.ToUpper(title)))
			continue
		}
		b.WriteString(escape(line) + "\n")
	}
	b.WriteString(".fi\n")
	if len(p.Also) > 0 {
		b.WriteString(".SH SEE ALSO\n" + escape(strings.Join(p.Also, "(1), ")) + "(1)\n")
	}
	return b.String()
}

// escape has roff print a line as it is.
func escape(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "^", `\(ha`, "~", `\(ti`).Replace(line)
	if strings.HasPrefix(line, ".") { // a request
		line = `\&` + line
	}
	return line
}
