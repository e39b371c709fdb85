package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"edgemesh/test/repo"
)

// directory is a directory with Go files.
type directory struct {
	path  string // from the root of the source tree
	files []file
	below []string // its directories, each with a "/" at the end
	rooms []string // those of them that are packages, helpers of tests aside

	purpose  bool     // the package comment begins as Go's do
	named    []string // files, patterns of files and directories that the package comment names
	hasList  bool     // the package comment lists files
	hasRooms bool     // the package comment lists directories
	bare     []string // time.Sleep in tests without a reason
}

type file struct {
	name string
	test bool
}

// directories reads the source tree.
func directories(t *testing.T) []*directory {
	t.Helper()
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	var all []*directory
	err = filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); dir != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist") {
			return filepath.SkipDir
		}
		sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(sources) == 0 {
			return err
		}
		texts := map[string]string{}
		for _, s := range sources {
			b, err := os.ReadFile(s)
			if err != nil {
				return err
			}
			texts[filepath.Base(s)] = string(b)
		}
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		f := parse(t, filepath.ToSlash(rel), texts)
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			f.below = append(f.below, e.Name()+"/")
			sources, err := filepath.Glob(filepath.Join(dir, e.Name(), "*.go"))
			if err != nil {
				return err
			}
			if len(sources) > 0 && !strings.HasSuffix(e.Name(), "test") {
				f.rooms = append(f.rooms, e.Name()+"/")
			}
		}
		all = append(all, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no Go files: this test looks at nothing")
	}
	return all
}

// parse reads the files of one directory.
func parse(t *testing.T, path string, texts map[string]string) *directory {
	t.Helper()
	f, fset, tests := &directory{path: path}, token.NewFileSet(), []*ast.File(nil)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text := texts[name]
		test := strings.HasSuffix(name, "_test.go")
		f.files = append(f.files, file{name, test})
		syntax, err := parser.ParseFile(fset, name, text,
			parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		f.readComment(syntax.Doc)
		if test {
			tests = append(tests, syntax)
		}
	}
	f.bare = bareSleeps(fset, tests, texts)
	return f
}

// begins is how a package comment begins: the name, then the purpose.
var begins = regexp.MustCompile(`^(?:Package|Command) \S+ \S`)

// fileName is a file or directory as package comments name them: alone, without a path.
var fileName = regexp.MustCompile(`(?:^|[\s(,;:])([a-z0-9_*]+(?:\.go|/))(?:[\s),;:.]|$)`)

// readComment notes what a package comment names. A list is in indented lines, and has
// two files at least.
func (f *directory) readComment(doc *ast.CommentGroup) {
	if doc == nil {
		return
	}
	f.purpose = f.purpose || begins.MatchString(doc.Text())
	listed := 0
	for _, c := range doc.List {
		line := strings.TrimPrefix(c.Text, "//")
		indented := strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "  ")
		// A separator ends one name and starts the next one.
		for _, m := range fileName.FindAllStringSubmatch(strings.ReplaceAll(line, " ", "  "), -1) {
			if isDirectory := strings.HasSuffix(m[1], "/"); isDirectory && !indented {
				continue // of another place, or no path at all
			}
			f.named = append(f.named, m[1])
			if indented && strings.HasSuffix(m[1], ".go") {
				listed++
			}
			f.hasRooms = f.hasRooms || strings.HasSuffix(m[1], "/")
		}
	}
	f.hasList = f.hasList || listed >= 2
}
