package reference

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// figurePages have no measured figure of their own: each stands between marks, <!--=NAME-->FIGURE<!--/-->, which are filled
// from the page of measurements where the same mark stands. What follows bench. is the measure of a row of docs/performance.md.
var figurePages = []string{
	"README.md", "docs/choices.md", "docs/comparison.md", "docs/concepts.md", "docs/faq.md", "docs/install.md", "docs/operations.md",
	"docs/performance.md", "docs/requirements.md", "docs/sim-card.md",
}

var (
	marked   = regexp.MustCompile(`<!--=([a-z0-9.-]+)-->([^<]*)<!--/-->`)
	promised = regexp.MustCompile(`(?m)^\| ([^|]+) \| [≤≥][^|]+\| [≤≥][^|]+\| ([^|]+) \| [^|]+ \|$`)
	unnamed  = regexp.MustCompile(`[^a-z0-9]+`)
)

// figures are the measured ones by name.
func figures(root string) (map[string]string, error) {
	out := map[string]string{}
	pages, err := filepath.Glob(filepath.Join(root, "docs/measurements/*.md"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		for _, m := range marked.FindAllStringSubmatch(string(text), -1) {
			if out[m[1]] != "" {
				return nil, fmt.Errorf("%s: the figure %s is measured twice", page, m[1])
			}
			out[m[1]] = m[2]
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/performance.md"))
	for _, m := range promised.FindAllStringSubmatch(string(text), -1) {
		out["bench."+unnamed.ReplaceAllString(strings.ToLower(m[1]), "-")] = m[2]
	}
	return out, err
}

// filled returns the function that writes a page with the figures as they were measured.
func filled(page string) func(root string) (string, error) {
	return func(root string) (string, error) {
		of, err := figures(root)
		if err != nil {
			return "", err
		}
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			return "", err
		}
		return marked.ReplaceAllStringFunc(string(text), func(s string) string {
			name := marked.FindStringSubmatch(s)[1]
			if of[name] == "" {
				err = fmt.Errorf("no page of docs/measurements has the figure %s", name)
			}
			return "<!--=" + name + "-->" + of[name] + "<!--/-->"
		}), err
	}
}
