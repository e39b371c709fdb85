package house

import (
	"bytes"
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
	types map[string]*typ // those of files that are no tests
	below []string        // its directories, each with a "/" at the end
	rooms []string        // those of them that are packages, helpers of tests aside

	purpose  bool     // the package comment begins as Go's do
	named    []string // files, patterns of files and directories that the package comment names
	hasList  bool     // the package comment lists files
	hasRooms bool     // the package comment lists directories
}

type file struct {
	name  string
	lines int
	test  bool
}

// typ is a type with its methods.
type typ struct {
	fields, methods int
	doc             string
}

// says tells whether a line of the type's comment starts so and continues.
func (x *typ) says(start string) bool {
	for line := range strings.Lines(x.doc) {
		if rest, ok := strings.CutPrefix(line, start); ok && strings.TrimSpace(rest) != "" {
			return true
		}
	}
	return false
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
	f := &directory{path: path, types: map[string]*typ{}}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text := texts[name]
		test := strings.HasSuffix(name, "_test.go")
		f.files = append(f.files, file{name, bytes.Count([]byte(text), []byte("\n")), test})
		syntax, err := parser.ParseFile(token.NewFileSet(), name, text,
			parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		f.readComment(syntax.Doc)
		if test {
			continue
		}
		for _, d := range syntax.Decls {
			f.readDecl(d)
		}
	}
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

func (f *directory) readDecl(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			if name := receiver(d.Recv.List[0].Type); name != "" {
				f.typeNamed(name).methods++
			}
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if s, ok := s.(*ast.TypeSpec); ok {
				f.readType(d, s)
			}
		}
	}
}

func (f *directory) readType(d *ast.GenDecl, s *ast.TypeSpec) {
	x := f.typeNamed(s.Name.Name)
	if s.Doc != nil {
		x.doc = s.Doc.Text()
	} else {
		x.doc = d.Doc.Text()
	}
	if st, ok := s.Type.(*ast.StructType); ok {
		for _, field := range st.Fields.List {
			x.fields += max(1, len(field.Names)) // an embedded one has no name
		}
	}
}

func (f *directory) typeNamed(name string) *typ {
	if f.types[name] == nil {
		f.types[name] = &typ{}
	}
	return f.types[name]
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
