package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
)

// What the runtime's configuration says of the plugin holds for the operator, too.
func TestOperatorReadsTheConflist(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	n.conf["exclude"] = []string{"10.244.1.2-10.244.1.9"}
	n.add("gone").del()
	p := n.add("web-0")
	wantEqual(t, "the first address that is not excluded", p.addrs(), []string{"10.244.1.11"})
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := func(args ...string) (out string, err error) {
		_ = n.netns.Do(func(ns.NetNS) error {
			var b []byte
			b, err = exec.Command(n.plugin, append([]string{"ipam"}, args...)...).CombinedOutput()
			out = string(b)
			return nil
		})
		return out, err
	}
	good := file("good", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"edgemesh","plugins":[{"type":"portmap"},%s]}`, n.netconf(nil)))
	out, err := run("list", "--conf", good)
	if err != nil || !strings.Contains(out, "245 usable, 1 used, 1 kept for deleted pods, 0 lost, oldest kept since 20") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("list", "--conf", good, "--data-dir", t.TempDir()); err != nil || !strings.Contains(out, "0 used, 0 kept") && !strings.Contains(out, "1 used, 0 kept") {
		t.Errorf("an option comes before the configuration: %v: %s", err, out)
	}
	missing := filepath.Join(dir, "missing")
	if out, err := run("list", "--conf", good, "--data-dir", missing); err != nil || !strings.Contains(out, missing+" does not exist") {
		t.Errorf("a missing directory: %v: %s", err, out)
	}
	if out, err := run("list", "--json", "--data-dir", missing, "--runtime-dir", missing); err != nil || !strings.Contains(out, `"pools": []`) {
		t.Errorf("no blocks are known: %v: %s", err, out)
	}
	if out, err := run("fsck", "--data-dir", missing); err != nil {
		t.Errorf("fsck of a missing directory: %v: %s", err, out)
	}
	if out, err := run("release", "default/web-0", "--data-dir", missing); err == nil || !strings.Contains(out, "no record of default/web-0") {
		t.Errorf("release in a missing directory: %v: %s", err, out)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the directory that is to be looked at was made")
	}
	if out, err := run("list", "--help"); err != nil || !strings.Contains(out, "ipam list [--json]") {
		t.Errorf("--help: %v: %s", err, out)
	}
	for name, content := range map[string]string{"torn": `{"plugins":[`, "theirs": `{"plugins":[{"type":"bridge"}]}`,
		"wrong": `{"plugins":[{"type":"edgemesh-cni","exclude":["x"]}]}`} {
		out, err := run("list", "--conf", file(name, content))
		if err == nil || !strings.Contains(out, filepath.Join(dir, name)) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	if out, err := run("list", "--conf", filepath.Join(dir, "none")); err == nil || !strings.Contains(out, "none") {
		t.Errorf("one that is not there: %v: %s", err, out)
	}
}

// An address whose ADD may still run is in use; only later is it lost.
func TestListTellsLostFromUnderWay(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	n.add("web-0")
	state := func() string {
		var out []byte
		err := n.netns.Do(func(ns.NetNS) (err error) {
			out, err = exec.Command(n.plugin, "ipam", "list", "--data-dir", n.data, "--runtime-dir", n.run).CombinedOutput()
			return err
		})
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	for line := range strings.Lines(inNS(t, n.netns, "ip", "-br", "link", "show", "type", "veth")) {
		name, _, _ := strings.Cut(line, "@")
		inNS(t, n.netns, "ip", "link", "del", name)
	}
	if out := state(); !strings.Contains(out, "10.244.1.2  used") || !strings.Contains(out, "1 used, 0 kept for deleted pods, 0 lost") {
		t.Errorf("a record without an interface, just written:\n%s", out)
	}
	path := filepath.Join(n.data, "10.244.1.2_default_web-0")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := regexp.MustCompile(`"allocated": "[^"]*"`).ReplaceAll(b, []byte(`"allocated": "2026-01-02T03:04:05Z"`))
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := state(); !strings.Contains(out, "10.244.1.2  lost") || !strings.Contains(out, "1 lost") {
		t.Errorf("a record without an interface, long ago:\n%s", out)
	}
}

// What a repair frees is kept for its pod only where the configuration says so.
func TestRepairKeepsTheOperatorsPolicy(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	n.conf["keepOnly"] = "statefulset"
	n.add("web-0")
	n.add("api")
	n.reboot("10.244.1.0/24")
	old := []byte("\"boot\": \"earlier\"")
	for _, f := range n.records() {
		path := filepath.Join(n.data, f)
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, regexp.MustCompile(`"boot": "[^"]*"`).ReplaceAll(b, old), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	list := filepath.Join(t.TempDir(), "conflist")
	if err := os.WriteFile(list, fmt.Appendf(nil, `{"plugins":[%s]}`, n.netconf(nil)), 0o600); err != nil {
		t.Fatal(err)
	}
	err := n.netns.Do(func(ns.NetNS) error {
		out, err := exec.Command(n.plugin, "ipam", "fsck", "--repair", "--conf", list).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "records", n.records(), []string{"10.244.1.2_default_web-0"})
}

func TestOperator(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	p := n.add("web-0")
	n.add("web-1").del()
	run := func(args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(n.plugin, append(append([]string{"ipam"}, args...), "--data-dir", n.data, "--runtime-dir", n.run)...)
		var out []byte
		_ = n.netns.Do(func(ns.NetNS) (err error) {
			out, err = cmd.CombinedOutput()
			return err
		})
		return string(out), cmd.ProcessState.ExitCode()
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"list"}, 0, "253 usable, 1 used, 1 kept for deleted pods, 0 lost"},
		{[]string{"list", "--json"}, 0, `"state": "kept"`},
		{[]string{"release", "default/web-0"}, 1, "--force"},
		{[]string{"release", "default/web-1"}, 0, ""},
		{[]string{"release", "default/web-1"}, 1, "no record"},
		{[]string{"release", "nonsense"}, 2, "neither"},
		{[]string{"release"}, 2, "needs"},
		{[]string{"fsck"}, 0, ""},
		{[]string{"list", "extra"}, 2, "unexpected"},
		{[]string{"explode"}, 2, "unknown command"},
		{[]string{"import", "/nonexistent"}, 1, "/nonexistent"},
		{[]string{"release", "10.244.1.2", "--force"}, 0, ""},
		{[]string{"list"}, 0, "0 used, 0 kept"},
		{[]string{"help"}, 0, "Usage"},
	} {
		out, code := run(c.args...)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("ipam %v: exit %d, want %d with %q: %s", c.args, code, c.code, c.says, out)
		}
	}
	if len(n.veths()) != 0 {
		t.Error("a forced release leaves the pod connected")
	}
	p.del()

	if err := os.WriteFile(filepath.Join(n.data, "10.244.1.50_default_torn"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := run("fsck"); code != 1 || !strings.Contains(out, "unusable") || !strings.Contains(out, "--repair") {
		t.Errorf("fsck: %d, %s", code, out)
	}
	if out, code := run("fsck", "--repair"); code != 0 {
		t.Errorf("fsck --repair: %d, %s", code, out)
	}
	if out, code := run("fsck"); code != 0 {
		t.Errorf("fsck after the repair: %d, %s", code, out)
	}
	wantEqual(t, "the repaired name's address", n.add("torn").addrs(), []string{"10.244.1.50"})
}

// Whatever is typed, the answer says what was wrong with it.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, c := range []struct {
		args        string
		code        int
		out, errOut string // parts; "" is nothing at all
	}{
		{"version", 0, "\ncommit: ", ""},
		{"--version", 0, "\ncommit: ", ""},
		{"--help", 0, "Examples:", ""},
		{"help", 0, "fsck [--repair] [--json]", ""},
		{"version now", 2, "", `unexpected argument "now"`},
		{"status", 2, "", `unknown command "status"`},
		{"ipam", 2, "", "Usage:"},
		{"ipam status", 2, "", `ipam: unknown command "status"`},
		{"ipam list --nonsense", 2, "", "ipam list: "},
	} {
		var out, errOut strings.Builder
		cmd := exec.Command(n.plugin, strings.Fields(c.args)...)
		cmd.Stdout, cmd.Stderr = &out, &errOut
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%s: exit %d, want %d", c.args, code, c.code)
		}
		for what, s := range map[string][2]string{"stdout": {out.String(), c.out}, "stderr": {errOut.String(), c.errOut}} {
			if !strings.Contains(s[0], s[1]) || s[1] == "" && s[0] != "" {
				t.Errorf("%s: %s %q, want %q", c.args, what, s[0], s[1])
			}
		}
	}
}
