// Package tiers reads from the sources in which tier every test is.
package tiers

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"edgemesh/test/tier"
)

// Dir is a directory with tests.
type Dir struct {
	Path    string    // below the root, with slashes
	Package tier.Tier // of all its tests, if Whole
	Whole   bool      // the package declares one
	Tests   map[string]tier.Tier
	Broken  []string // declarations that say nothing clear
}

// Tree reads all directories below root, except testdata and what is built.
func Tree(root string) ([]*Dir, error) {
	dirs := map[string]*Dir{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (slices.Contains([]string{"testdata", "bin", "dist"}, d.Name()) || d.Name()[0] == '.') {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		below = filepath.ToSlash(below)
		if dirs[below] == nil {
			dirs[below] = &Dir{Path: below, Tests: map[string]tier.Tier{}}
		}
		dirs[below].file(f)
		return nil
	})
	var all []*Dir
	for _, d := range dirs {
		for name, at := range d.Tests {
			if d.Whole && at == tier.OfAll {
				d.Broken = append(d.Broken, name+" declares a tier, and its package does")
			}
			if d.Whole {
				d.Tests[name] = max(at, d.Package)
			}
		}
		slices.Sort(d.Broken)
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *Dir) int { return strings.Compare(a.Path, b.Path) })
	return all, err
}

// file reads the declarations of one file.
func (d *Dir) file(f *ast.File) {
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.GenDecl:
			ast.Inspect(decl, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok && called(c) == "Package" {
					at := -1
					if len(c.Args) == 1 {
						at = slices.Index([]string{"OfTest", "OfAll", "OfLong"}, selected(c.Args[0]))
					}
					if d.Whole || at < 1 {
						d.Broken = append(d.Broken, "tier.Package: once, and with tier.OfAll or tier.OfLong")
					}
					d.Whole, d.Package = true, tier.Tier(max(at, 0))
				}
				return true
			})
		case *ast.FuncDecl:
			d.function(decl)
		}
	}
}

func (d *Dir) function(f *ast.FuncDecl) {
	var first *ast.CallExpr
	if f.Body != nil && len(f.Body.List) > 0 {
		if s, ok := f.Body.List[0].(*ast.ExprStmt); ok {
			first, _ = s.X.(*ast.CallExpr)
		}
	}
	isTest := f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain"
	if isTest {
		at := tier.OfTest
		switch called(first) {
		case "All":
			at = tier.OfAll
		case "Long":
			at = tier.OfLong
		}
		d.Tests[f.Name.Name] = at
	}
	if f.Body == nil {
		return
	}
	for _, stmt := range f.Body.List {
		if s, ok := stmt.(*ast.ExprStmt); ok && isTest {
			if c, ok := s.X.(*ast.CallExpr); ok && c != first && called(c) == "Long" {
				d.Broken = append(d.Broken, f.Name.Name+": tier.Long is not the first statement of the test")
			}
		}
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		switch {
		case !ok:
		case called(c) == "All" && (!isTest || c != first):
			d.Broken = append(d.Broken, fmt.Sprintf("%s: tier.All is not the first statement of a test", f.Name.Name))
		case called(c) == "Long" && !isTest:
			d.Broken = append(d.Broken, fmt.Sprintf("%s: tier.Long is neither in a test nor in a subtest", f.Name.Name))
		case called(c) == "Package":
			d.Broken = append(d.Broken, fmt.Sprintf("%s: tier.Package belongs beside functions", f.Name.Name))
		}
		return true
	})
}

// called is the function of package tier that c calls, or "".
func called(c *ast.CallExpr) string {
	if c == nil {
		return ""
	}
	return selected(c.Fun)
}

// selected is the name that e takes from package tier, or "".
func selected(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); !ok || x.Name != "tier" {
		return ""
	}
	return s.Sel.Name
}
