package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// sleeps holds tests to wait for a condition, with fair.Eventually or lab.Until. Where time itself is the point, the line says why.
func sleeps(f *directory) []string { return f.bare }

// bareSleeps finds time.Sleep without a reason outside bubbles, where it takes no time: those of synctest.Test and of functions that take
// one and call that.
func bareSleeps(fset *token.FileSet, tests []*ast.File, texts map[string]string) (bare []string) {
	called := func(n ast.Node) string {
		if c, ok := n.(*ast.CallExpr); ok {
			return types.ExprString(c.Fun)
		}
		return ""
	}
	var makers []string
	bubble := func(call string) bool {
		return call == "synctest.Test" || slices.Contains(makers, call[strings.LastIndexByte(call, '.')+1:])
	}
	takes := func(p *ast.Field) bool { _, ok := p.Type.(*ast.FuncType); return ok }
	for _, f := range tests {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && slices.ContainsFunc(d.Type.Params.List, takes) {
				ast.Inspect(d, func(n ast.Node) bool {
					if bubble(called(n)) {
						makers = append(makers, d.Name.Name)
					}
					return true
				})
			}
		}
	}
	for _, f := range tests {
		ast.Inspect(f, func(n ast.Node) bool {
			call := called(n)
			if call == "time.Sleep" {
				at := fset.Position(n.Pos())
				if !strings.Contains(strings.Split(texts[at.Filename], "\n")[at.Line-1], " // sleep: ") {
					bare = append(bare, fmt.Sprintf("%s:%d: wait for a condition, or end the line of time.Sleep with // sleep: and the reason", at.Filename, at.Line))
				}
			}
			return !bubble(call)
		})
	}
	return bare
}
