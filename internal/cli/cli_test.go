package cli_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/self"
)

func TestExecute(t *testing.T) {
	state := t.TempDir()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string // parts; "" is nothing at all
	}{
		{"", 0, "Usage:", ""},
		{"version", 0, "edgemesh dev (commit unknown)\ncommit: unknown\ndate: unknown\ngo: go1.", ""},
		{"version", 0, "\nprotocols: /edgemesh/stream/1 ", ""},
		{"version", 0, "\nAPI: network.edgemesh.io/v1alpha1\nsnapshot: 1\n", ""},
		{"--version", 0, "1.2.3\n", ""},
		{"version --help", 0, "  prog version\n", ""},
		{"id --help", 0, "this relay's peer ID", ""},
		{"id --state-dir " + state, 0, "12D3KooW", "created the key of this relay: " + state + "/identity.key\n"},
		{"id --state-dir " + state, 0, "12D3KooW", ""},
		{"id --state-dir " + state + "/a/b", cli.ExitUsage, "", "prog: --state-dir " + state + "/a/b: there is no directory " + state + "/a; check the path"},
		{"id --state-dir " + file + "/s", cli.ExitUsage, "", "prog: --state-dir: mkdir " + file + ": not a directory; a file is in the way"},
		{"man " + state + "/man", 0, "wrote the man pages to " + state + "/man\n", ""},
		{"nonsense", cli.ExitUsage, "", "prog: unknown command \"nonsense\" (see `prog --help`)\n"},
		{"versoin", cli.ExitUsage, "", "prog: unknown command \"versoin\" (did you mean version?) (see `prog --help`)\n"},
		{"go up\x1b[2J", cli.ExitFailed, "", "prog: no way to up?[2J\n"},
		{"version now", cli.ExitUsage, "", "prog: unexpected argument \"now\" (see `prog version --help`)\n"},
		{"go home --times x", cli.ExitUsage, "", "prog: --times \"x\": must be a whole number (see `prog go --help`)\n"},
		{"id --dir", cli.ExitUsage, "", "prog: unknown flag: --dir (see `prog id --help`)\n"},
		{"go home --tmies 2", cli.ExitUsage, "", "prog: unknown flag: --tmies (did you mean --times?) (see `prog go --help`)\n"},
		{"go home -x", cli.ExitUsage, "", "prog: unknown shorthand flag: 'x' in -x (see `prog go --help`)\n"},
		{"go", cli.ExitUsage, "", "prog: WHERE is missing (see `prog go --help`)\n"},
		{"go home now", cli.ExitUsage, "", "prog: unexpected argument \"now\" (see `prog go --help`)\n"},
		{"go nowhere", cli.ExitFailed, "", "prog: no way to nowhere\n"},
		{"go wrong", cli.ExitUsage, "", "prog: way: wrong\n"},
		{"go silently", cli.ExitFailed, "", ""},
	} {
		root := &cobra.Command{Use: "prog", Version: "1.2.3"}
		going := &cobra.Command{
			Use: "go WHERE", Args: cli.Args("WHERE"),
			RunE: func(_ *cobra.Command, args []string) error {
				switch args[0] {
				case "wrong":
					return fmt.Errorf("way: %w", cli.Usage(errors.New("wrong")))
				case "silently":
					return cli.ErrReported
				}
				return errors.New("no way to " + args[0])
			},
		}
		going.Flags().Int("times", 1, "")
		root.AddCommand(self.Version("prog", []protocol.ID{"/edgemesh/stream/1", "/edgemesh/datagram/1"}), self.ID("prog", "relay", "/var/lib/x"), going)
		var stdout, stderr strings.Builder
		code := cli.Execute(t.Context(), root, strings.Fields(c.args), &stdout, &stderr)
		for what, s := range map[string][2]string{"stdout": {stdout.String(), c.stdout}, "stderr": {stderr.String(), c.stderr}} {
			if !strings.Contains(s[0], s[1]) || s[1] == "" && s[0] != "" {
				t.Errorf("prog %s: %s %q, want %q", c.args, what, s[0], s[1])
			}
		}
		if code != c.code {
			t.Errorf("prog %s: exit code %d, want %d", c.args, code, c.code)
		}
	}
}
