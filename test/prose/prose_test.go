// Package prose holds the project's language to docs/glossary.md: the words it replaces appear in no
// comment, string, declared name or page.
//
// Vale (v3.16.0 builds from its Go module) was tried first. It reads the comments of Go files only; what
// an operator reads is in strings, and a build of it takes longer than all of this.
package prose

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const (
	root     = "../.."
	glossary = "docs/glossary.md"
)

// TestWords looks for words that the glossary replaces.
func TestWords(t *testing.T) {
	words := refused(t)
	each(t, func(path string, text []byte) {
		if path == glossary {
			return
		}
		for _, p := range passages(t, path, text) {
			for _, f := range p.search(words) {
				t.Errorf("%s:%d: %q: say %s", path, f.line, f.text, f.say)
			}
		}
	})
}

// words are the words and phrases that are refused, and what to say instead.
type words struct {
	find *regexp.Regexp
	say  map[string]string // by phrase, in lower case
}

// between is what may stand between two words of a phrase, which may go on in the next line of a comment.
const between = `[\s/#*>]+`

// refused reads the glossary's second table.
func refused(t *testing.T) words {
	text, err := os.ReadFile(filepath.Join(root, glossary))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "| not | say | not | say |\n|---|---|---|---|\n")
	if !ok {
		t.Fatalf("%s: no table of refused words", glossary)
	}
	say := map[string]string{}
	var patterns []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		for i := 1; i+1 < len(cells); i += 2 {
			for _, phrase := range strings.Split(cells[i], ",") {
				phrase = strings.ToLower(strings.TrimSpace(phrase))
				say[phrase] = strings.TrimSpace(cells[i+1])
				patterns = append(patterns, strings.ReplaceAll(regexp.QuoteMeta(phrase), " ", between))
			}
		}
	}
	if len(say) < 20 {
		t.Fatalf("%s: only %d refused words", glossary, len(say))
	}
	return words{regexp.MustCompile(`(?i)\b(?:` + strings.Join(patterns, "|") + `)\b`), say}
}

// each calls f with every file that people write, by its path from the root.
func each(t *testing.T, f func(path string, text []byte)) {
	skip := []string{".git", ".ci", "bin", "dist", "results", "testdata", "prose", "vendor"}
	kinds := []string{".go", ".md", ".sh", ".yaml", ".txt", ".tpl", ".service", "Makefile"}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(skip, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if !d.Type().IsRegular() || !slices.ContainsFunc(kinds, func(k string) bool { return strings.HasSuffix(name, k) }) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(name, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// passage is text that is read as one, from a line on.
type passage struct {
	line int
	text string
}

// finding is a refused word, and where it stands.
type finding struct {
	line      int
	text, say string
}

func (p passage) search(w words) (out []finding) {
	for _, at := range w.find.FindAllStringIndex(p.text, -1) {
		text := p.text[at[0]:at[1]]
		phrase := strings.ToLower(gaps.ReplaceAllString(text, " "))
		out = append(out, finding{p.line + strings.Count(p.text[:at[0]], "\n"), text, w.say[phrase]})
	}
	return out
}

var gaps = regexp.MustCompile(between)

// passages of a Go file are its comments, its strings and the names it declares; another file is one passage.
func passages(t *testing.T, path string, text []byte) (out []passage) {
	if filepath.Ext(path) != ".go" {
		return []passage{{1, string(text)}}
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	add := func(n ast.Node, text string) { out = append(out, passage{files.Position(n.Pos()).Line, text}) }
	for _, c := range file.Comments {
		add(c, string(text[c.Pos()-file.FileStart:c.End()-file.FileStart]))
	}
	declares := func(names ...*ast.Ident) {
		for _, n := range names {
			add(n, spaced(n.Name))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				add(n, n.Value)
			}
		case *ast.FuncDecl:
			declares(n.Name)
		case *ast.TypeSpec:
			declares(n.Name)
		case *ast.ValueSpec:
			declares(n.Names...)
		case *ast.Field:
			declares(n.Names...)
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if name, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
					declares(name)
				}
			}
		}
		return true
	})
	return out
}

// spaced is a name in words: errShunned is "err Shunned".
func spaced(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// TestFinds shows that each kind of passage is read, and where it says that a word stands.
func TestFinds(t *testing.T) {
	text := "package p\n\n// F waits for\n// ever.\nfunc F() { go rouseAll() }\n\n" +
		"func rouseAll() { panic(`a\nb in vain`) }\n\ntype roster int\n"
	want := []string{"10 roster", "3 for\n// ever", "7 rouse", "8 in vain"}
	var got []string
	words := refused(t)
	for _, p := range passages(t, "p.go", []byte(text)) {
		for _, f := range p.search(words) {
			got = append(got, fmt.Sprint(f.line, " ", f.text))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// docs/security.md names the test that shows what an attacker cannot do; each one exists where the page says.
func TestSecurityPageNamesTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		names += namesTests(t, cells[2])
	}
	if names < 20 {
		t.Errorf("only %d tests are named: this test does not understand the page any longer", names)
	}
}

// namesTests wants the tests that a cell names to exist, and counts them: `DIRECTORY` Test…, Test…; in test/e2e without one.
func namesTests(t *testing.T, cell string) (names int) {
	t.Helper()
	for part := range strings.SplitSeq(cell, ";") {
		dir := "test/e2e"
		if m := regexp.MustCompile("`([a-z0-9/]+)`").FindStringSubmatch(part); m != nil {
			dir = m[1]
		}
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(part, -1) {
			names++
			if !hasTest(t, filepath.Join(root, dir), name) {
				t.Errorf("%s is not in %s", name, dir)
			}
		}
	}
	return names
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
