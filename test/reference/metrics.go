package reference

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// programs are the sections of the page, with the directories whose metrics they serve.
var programs = []struct {
	title string
	dirs  []string
}{
	{"Agent", []string{"agent/daemon", "agent/cnicalls", "internal/endpoint"}},
	{"Relay", []string{"relay", "tunnel/p2p/relay/relayservice", "internal/endpoint"}},
	{"Controller", []string{"agent/controller", "internal/endpoint"}},
}

// metric is one that a program declares.
type metric struct {
	help   string
	labels []string
}

func metrics(root string) (string, error) {
	var b strings.Builder
	b.WriteString("# Metrics\n\n" + wrap("Made from the code by `make reference`. [Troubleshooting](../troubleshooting.md#what-to-watch) says what to "+
		"watch, the chart's `monitoring` has alerts and dashboards. Every program also serves Go's metrics (`go_…`, `process_…`). An agent "+
		"that is a relay serves the relay's, too.") + "\n")
	for _, p := range programs {
		found := map[string]metric{}
		for _, dir := range p.dirs {
			files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
			if err != nil {
				return "", err
			}
			for _, f := range files {
				if strings.HasSuffix(f, "_test.go") {
					continue
				}
				tree, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
				if err != nil {
					return "", err
				}
				ast.Inspect(tree, func(n ast.Node) bool { declared(n, found); return true })
			}
		}
		if len(found) < 5 {
			return "", fmt.Errorf("%s: only %d metrics are found", p.title, len(found))
		}
		b.WriteString("\n## " + p.title + "\n\n" + row("metric", "labels", "meaning") + row("---", "---", "---"))
		for _, name := range slices.Sorted(maps.Keys(found)) {
			b.WriteString(row("`"+name+"`", strings.Join(found[name].labels, ", "), cell(found[name].help)))
		}
	}
	return b.String(), nil
}

// declared notes a metric that n declares: Prometheus' options, or a call of the helpers that take name and help.
func declared(n ast.Node, found map[string]metric) {
	call, is := n.(*ast.CallExpr)
	if !is || len(call.Args) == 0 {
		return
	}
	name, help := "", ""
	var rest []ast.Expr
	if opts, is := call.Args[0].(*ast.CompositeLit); is {
		for _, e := range opts.Elts {
			if kv, is := e.(*ast.KeyValueExpr); is {
				switch fmt.Sprint(kv.Key) {
				case "Name":
					name = text(kv.Value)
				case "Help":
					help = text(kv.Value)
				}
			}
		}
		rest = call.Args[1:]
	} else if len(call.Args) > 1 {
		name, help, rest = text(call.Args[0]), text(call.Args[1]), call.Args[2:]
		if f, is := call.Fun.(*ast.Ident); is && f.Name == "desc" && name != "" {
			name = "edgemesh_" + name
		}
	}
	if !strings.HasPrefix(name, "edgemesh_") || help == "" {
		return
	}
	m := metric{help: help}
	for _, e := range rest {
		if list, is := e.(*ast.CompositeLit); is { // []string{…}
			for _, x := range list.Elts {
				m.labels = append(m.labels, text(x))
			}
		} else if s := text(e); s != "" {
			m.labels = append(m.labels, s)
		}
	}
	found[name] = m
}

// text is a string literal's value, "" for anything else.
func text(e ast.Expr) string {
	lit, is := e.(*ast.BasicLit)
	if !is || lit.Kind != token.STRING {
		return ""
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}
