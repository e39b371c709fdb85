package prose

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	linked    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mentioned = regexp.MustCompile(`(?:^|[\s("'` + "`" + `])(docs/[a-z0-9/-]+\.md)`)
)

// TestLinks: every link of a page leads to a file that is there, and to a heading of it; every page that code, manifests
// and scripts name is there. Links to other servers are not followed.
func TestLinks(t *testing.T) {
	anchors := map[string]map[string]bool{}
	links := 0
	each(t, func(name string, text []byte) {
		if filepath.Ext(name) != ".md" {
			for _, m := range mentioned.FindAllSubmatch(text, -1) {
				links++
				if _, err := os.Stat(filepath.Join(root, string(m[1]))); err != nil {
					t.Errorf("%s names %s, which is not there", name, m[1])
				}
			}
			return
		}
		for i, line := range prosaic(string(text)) {
			for _, m := range linked.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
					continue
				}
				links++
				if err := follow(name, m[1], anchors); err != nil {
					t.Errorf("%s:%d: %s: %v", name, i+1, m[1], err)
				}
			}
		}
	})
	if links < 100 {
		t.Errorf("only %d links were found", links)
	}
}

// TestReachable: every page of docs, and every project page, can be reached by links from docs/README.md, as the site's
// first page, and from the README.
func TestReachable(t *testing.T) {
	next := map[string][]string{}
	var pages []string
	each(t, func(name string, text []byte) {
		if filepath.Ext(name) != ".md" {
			return
		}
		if strings.HasPrefix(name, "docs/") || !strings.Contains(name, "/") {
			pages = append(pages, name)
		}
		for _, line := range prosaic(string(text)) {
			for _, m := range linked.FindAllStringSubmatch(line, -1) {
				if target, _, _ := strings.Cut(m[1], "#"); target != "" && !strings.Contains(target, "://") {
					next[name] = append(next[name], path.Join(path.Dir(name), target))
				}
			}
		}
	})
	for _, first := range []string{"docs/README.md", "README.md"} {
		seen, queue := map[string]bool{first: true}, []string{first}
		for len(queue) > 0 {
			page := queue[0]
			queue = queue[1:]
			for _, p := range next[page] {
				if !seen[p] {
					seen[p] = true
					queue = append(queue, p)
				}
			}
		}
		for _, p := range pages {
			if !seen[p] {
				t.Errorf("no links lead from %s to %s", first, p)
			}
		}
	}
}

// prosaic is a page's lines, those of code empty.
func prosaic(text string) []string {
	lines := strings.Split(text, "\n")
	code := false
	for i, l := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(l), "```")
		if fence || code {
			lines[i] = ""
		}
		code = code != fence
	}
	return lines
}

// follow follows a link of a page. anchors has those of the pages that were read.
func follow(page, link string, anchors map[string]map[string]bool) error {
	target, anchor, has := strings.Cut(link, "#")
	if target == "" {
		target = page
	} else {
		target = path.Join(path.Dir(page), target)
	}
	if _, err := os.Stat(filepath.Join(root, target)); err != nil {
		return err
	}
	if !has {
		return nil
	}
	if anchors[target] == nil {
		text, err := os.ReadFile(filepath.Join(root, target))
		if err != nil {
			return err
		}
		anchors[target] = headings(string(text))
	}
	if !anchors[target][anchor] {
		return fmt.Errorf("%s has no heading with the anchor %q", target, anchor)
	}
	return nil
}

// headings are the anchors that GitHub gives a page's headings.
func headings(text string) map[string]bool {
	out, seen := map[string]bool{}, map[string]int{}
	for _, line := range prosaic(text) {
		title := strings.TrimLeft(line, "#")
		if title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linked.ReplaceAllString(strings.TrimSpace(title), ""))
		if n := seen[anchor]; n > 0 {
			out[fmt.Sprintf("%s-%d", anchor, n)] = true
		} else {
			out[anchor] = true
		}
		seen[anchor]++
	}
	return out
}

// The check finds what is wrong.
func TestBrokenLinks(t *testing.T) {
	got := headings("# What pods reach of `nodes`, and LANs\n```\n# no heading\n```\n## Again\n## Again\n")
	for _, want := range []string{"what-pods-reach-of-nodes-and-lans", "again", "again-1"} {
		if !got[want] {
			t.Errorf("no anchor %q in %v", want, got)
		}
	}
	if len(got) != 3 {
		t.Errorf("anchors %v", got)
	}
	for _, bad := range []string{"nothing.md", "../README.md#nothing", "#nothing"} {
		if follow("docs/install.md", bad, map[string]map[string]bool{}) == nil {
			t.Errorf("%s is taken for a good link", bad)
		}
	}
}
