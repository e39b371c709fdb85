package manpage

import (
	"os"
	"path/filepath"
	"testing"
)

// A page says what help says, in its sections, and nothing of it is taken for roff.
func TestPage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	p := Page{Name: "tool-go", Source: "tool v1.2", Short: "Do - or don't", Also: []string{"tool", "tool-x"},
		Help: "Goes home.\n.hidden is \\n a file.\nOf a file that is longer it keeps:\n  a\n\nUsage:\n  tool go FILE\n\nGlobal Flags:\n  -c, --config FILE:\n"}
	if err := p.Write(dir); err != nil {
		t.Fatal(err)
	}
	const want = `.nh
.TH TOOL\-GO 1 "" "tool v1.2" EdgeMesh
.SH NAME
tool\-go \- Do \- or don\(aqt
.SH DESCRIPTION
.nf
Goes home.
\&.hidden is \en a file.
Of a file that is longer it keeps:
  a

.fi
.SH USAGE
.nf
  tool go FILE

.fi
.SH GLOBAL FLAGS
.nf
  \-c, \-\-config FILE:
.fi
.SH SEE ALSO
tool(1), tool\-x(1)
`
	if b, err := os.ReadFile(filepath.Join(dir, "tool-go.1")); string(b) != want || err != nil {
		t.Errorf("%v, the page is\n%s\nwant\n%s", err, b, want)
	}
	if err := p.Write(filepath.Join(dir, "tool-go.1")); err == nil {
		t.Error("a file was taken for a directory")
	}
}
