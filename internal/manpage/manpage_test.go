package manpage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestWrite: a page says what --help says, nothing of it is taken for roff, and all commands have one.
func TestWrite(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "tool", Short: "Do - or don't"}
	sub := &cobra.Command{Use: "go FILE", Short: "Go", Run: run, Example: "  tool go x\n.y",
		Long: "Goes to `tool home`.\n.hidden is \\n a file.\n\nKeys:\n  a  first\n  b  second\nthat is all"}
	sub.Flags().StringP("config", "c", "/etc/x", "`file` to read")
	sub.Flags().Bool("quiet", false, "say nothing")
	sub.Flags().Bool("secret", false, "nobody reads this")
	_ = sub.Flags().MarkHidden("secret")
	root.AddCommand(sub, &cobra.Command{Use: "gone", Hidden: true, Run: run})
	dir := filepath.Join(t.TempDir(), "made")
	if err := Write(root, "v1.2", dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%v, %v, want pages of tool and tool-go", files, err)
	}
	for name, want := range map[string][]string{
		"tool.1": {".TH \"TOOL\" 1 \"\" \"tool v1.2\" EdgeMesh\n", "tool \\- Do \\- or don\\(aqt\n", "\\fBtool\\-go\\fR(1)\n"},
		"tool-go.1": {"\\fBtool go FILE [flags]\\fR\n", "Goes to \\fBtool home\\fR.\n\\&.hidden is \\en a file.\n.PP\nKeys:\n",
			".nf\n  a  first\n  b  second\n.fi\nthat is all\n", ".TP\n\\fB\\-c\\fR, \\fB\\-\\-config\\fR=\"/etc/x\"\n\\fBfile\\fR to read\n",
			"\\fB\\-\\-quiet\\fR[=false]\nsay nothing\n", ".nf\n  tool go x\n\\&.y\n.fi\n", ".SH SEE ALSO\n\\fBtool\\fR(1)\n"},
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(b), w) {
				t.Errorf("%s lacks %q:\n%s", name, w, b)
			}
		}
		if strings.Contains(string(b), "nobody") {
			t.Errorf("%s has an option that is hidden", name)
		}
	}
	if err := Write(root, "v1.2", filepath.Join(dir, "tool.1")); err == nil {
		t.Error("a file was taken for a directory")
	}
}
