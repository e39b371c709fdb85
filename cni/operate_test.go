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
	if err != nil || !strings.Contains(out, "245 usable, 1 used, 1 kept for gone pods, 0 lost, oldest kept since 20") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("list", "--conf", good, "--data-dir", t.TempDir()); err != nil || !strings.Contains(out, "0 used, 0 kept") && !strings.Contains(out, "1 used, 0 kept") {
		t.Errorf("an option comes before the configuration: %v: %s", err, out)
	}
	missing := filepath.Join(dir, "missing")
	if out, err := run("list", "--conf", good, "--data-dir", missing); err != nil || !strings.Contains(out, missing+" is not there") {
		t.Errorf("a folder that is not there: %v: %s", err, out)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("list makes the folder it is to look at")
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

// What a repair frees is kept for its pod only where the configuration says so.
func TestRepairKeepsTheOperatorsPolicy(t *testing.T) {
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
