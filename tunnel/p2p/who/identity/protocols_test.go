package identity

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/protocol"
)

// TestProtocols: what programs print as their protocols is every constant of the file.
func TestProtocols(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "protocols.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		declared++
		if !slices.ContainsFunc(Protocols(), func(p protocol.ID) bool {
			return string(p) == value || spec.Names[0].Name == "DHTPrefix" && strings.HasPrefix(string(p), value+"/kad/")
		}) {
			t.Errorf("%s is not in Protocols()", spec.Names[0].Name)
		}
		return true
	})
	if declared != len(Protocols()) {
		t.Errorf("%d constants, %d protocols", declared, len(Protocols()))
	}
}

// TestProtocolsOnPage: docs/compatibility.md has each of them.
func TestProtocolsOnPage(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Protocols() {
		if name := "`" + strings.TrimPrefix(string(p), "/edgemesh/") + "`"; !strings.Contains(string(page), name) {
			t.Errorf("docs/compatibility.md lacks %s", name)
		}
	}
}
