// Package reference writes the pages that are made from code: `make reference` writes them, its test compares them.
//
//	reference.go  the pages, and what they have in common
//	metrics.go    metrics, from where the programs declare them
//	crds.go       kinds of the API, from their definitions
//	values.go     values of the chart, from the comments in values.yaml
//	schema.go     the schema of these, from the comments and manifests/values.constraints.json
//	figures.go    measured figures on other pages, from the pages of measurements
//	drawings.go   pictures, from a text that says where the boxes are
//
// The commands' pages are written where the commands are: TestReference in agent and relay.
package reference

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Pages are the functions that write pages, by the page's path in the repository.
var Pages = map[string]func(root string) (string, error){
	"docs/reference/metrics.md":             metrics,
	"docs/reference/crds.md":                crds,
	"manifests/edgemesh/README.md":          values,
	"manifests/edgemesh/values.schema.json": valuesSchema,
	"docs/images/sites.svg":                 drawing("sites"),
	"docs/images/paths.svg":                 drawing("paths"),
}

// cell is text in a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// wrap breaks a paragraph into lines.
func wrap(text string) string {
	var b strings.Builder
	width := 0
	for _, w := range strings.Fields(text) {
		n := utf8.RuneCountInString(w)
		switch {
		case width == 0:
		case width+1+n > 120:
			b.WriteString("\n")
			width = 0
		default:
			b.WriteString(" ")
			width++
		}
		b.WriteString(w)
		width += n
	}
	return b.String()
}

// row is a row of a table.
func row(cells ...string) string {
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// Compare wants a page to be as it is written, or writes it, with EDGEMESH_UPDATE set.
func Compare(t testing.TB, page, want string) {
	t.Helper()
	if os.Getenv("EDGEMESH_UPDATE") != "" {
		if err := os.MkdirAll(filepath.Dir(page), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(page)
	if err != nil || string(have) != want {
		t.Errorf("%s is not what the code says (%v): make reference", page, err)
	}
}

// Commands is the page of a program's commands, with their help.
func Commands(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\nMade from the program's own help by `make reference`; the same is in its man pages.\n", root.Name())
	var each func(*cobra.Command)
	each = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		var help strings.Builder
		c.SetOut(&help)
		_ = c.Help()
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s\n```\n", c.CommandPath(), strings.TrimSpace(trailing.ReplaceAllString(help.String(), "\n")))
		for _, x := range c.Commands() {
			each(x)
		}
	}
	each(root)
	return b.String()
}

var trailing = regexp.MustCompile(` +\n`)
