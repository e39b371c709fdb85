// Package manpage makes man pages of commands from the text of their help. It writes what they need of roff by itself: cobra's
// generator of documents links a parser of Markdown and one of YAML into each program.
package manpage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Long and Short describe a command that calls Write.
const (
	Short = "Write the man pages into a directory"
	Long  = `Write a man page for each command into DIR, which is made if it does not exist.
The pages are made from the same text as --help.`
)

// Write writes a page for root, whose program has this version, and for each of its commands into dir.
func Write(root *cobra.Command, version, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("man pages: %w", err)
	}
	return write(root, root.Name()+" "+version, dir)
}

func write(c *cobra.Command, source, dir string) error {
	file := filepath.Join(dir, title(c)+".1")
	if err := os.WriteFile(file, []byte(page(c, source)), 0o644); err != nil { //nolint:gosec // for everybody
		return fmt.Errorf("man pages: %w", err)
	}
	for _, sub := range available(c) {
		if err := write(sub, source, dir); err != nil {
			return err
		}
	}
	return nil
}

// available are the commands below c that its help lists.
func available(c *cobra.Command) (out []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			out = append(out, sub)
		}
	}
	return out
}

// title is the page's name.
func title(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// page is the manual page of c. It has no date: the same program makes the same page.
func page(c *cobra.Command, source string) string {
	c.InitDefaultHelpCmd()
	c.InitDefaultHelpFlag()
	var b strings.Builder
	fmt.Fprintf(&b, ".nh\n.TH %s 1 \"\" %s EdgeMesh\n", quote(strings.ToUpper(title(c))), quote(source))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(title(c)), escape(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n\\fB%s\\fR\n", escape(c.UseLine()))
	b.WriteString(".SH DESCRIPTION\n")
	long := c.Long
	if long == "" {
		long = c.Short
	}
	text(&b, long)
	options(&b, "OPTIONS", c.NonInheritedFlags())
	options(&b, "OPTIONS INHERITED FROM PARENT COMMANDS", c.InheritedFlags())
	if c.Example != "" {
		b.WriteString(".SH EXAMPLE\n.nf\n" + escape(strings.TrimRight(c.Example, "\n")) + "\n.fi\n")
	}
	var also []string
	if c.HasParent() {
		also = append(also, title(c.Parent()))
	}
	for _, sub := range available(c) {
		also = append(also, title(sub))
	}
	if len(also) > 0 {
		b.WriteString(".SH SEE ALSO\n")
	}
	for i, name := range also {
		fmt.Fprintf(&b, "\\fB%s\\fR(1)%s\n", escape(name), map[bool]string{true: ","}[i < len(also)-1])
	}
	return b.String()
}

// text writes paragraphs; lines that are indented, and those among them, stay lines.
func text(b *strings.Builder, s string) {
	list := false // among indented lines
	end := func() {
		if list {
			b.WriteString(".fi\n")
		}
		list = false
	}
	for line := range strings.Lines(strings.TrimSpace(s) + "\n") {
		line = strings.TrimRight(line, "\n")
		switch indented := strings.HasPrefix(line, " "); {
		case line == "":
			end()
			b.WriteString(".PP\n")
			continue
		case indented && !list:
			b.WriteString(".nf\n")
			list = true
		case !indented:
			end()
		}
		b.WriteString(bold(escape(line)) + "\n")
	}
	end()
}

// options writes the flags in f under a heading, if there are any.
func options(b *strings.Builder, heading string, f *pflag.FlagSet) {
	if !f.HasAvailableFlags() {
		return
	}
	b.WriteString(".SH " + heading + "\n")
	f.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		b.WriteString(".TP\n")
		if f.Shorthand != "" && f.ShorthandDeprecated == "" {
			fmt.Fprintf(b, "\\fB\\-%s\\fR, ", escape(f.Shorthand))
		}
		value := f.DefValue
		if f.Value.Type() == "string" {
			value = `"` + value + `"`
		}
		fmt.Fprintf(b, "\\fB%s\\fR%s=%s%s\n%s\n", escape("--"+f.Name), optional(f, "["), escape(value), optional(f, "]"), bold(escape(f.Usage)))
	})
}

// optional is bracket if the option may be written without a value.
func optional(f *pflag.Flag, bracket string) string {
	if f.NoOptDefVal == "" {
		return ""
	}
	return bracket
}

// bold prints what is in backquotes in bold type.
func bold(s string) string {
	parts := strings.Split(s, "`")
	if len(parts)%2 == 0 { // one is left over
		return s
	}
	for i := 1; i < len(parts); i += 2 {
		parts[i] = `\fB` + parts[i] + `\fR`
	}
	return strings.Join(parts, "")
}

// escape has roff print s as it is.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "^", `\(ha`, "~", `\(ti`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") { // a request
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// quote makes one argument of a request of s.
func quote(s string) string { return `"` + strings.ReplaceAll(escape(s), `"`, `""`) + `"` }
