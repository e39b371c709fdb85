package prose

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// ledger is the page that says which test runs a command.
const ledger = "docs/commands.md"

// programs begin a command of an operator.
var programs = regexp.MustCompile(`^(apt-get|kubectl|helm|kubeadm|ctr|crictl|skopeo|podman|nerdctl|systemctl|journalctl|modprobe|ip|scp|ssh|mkdir|printf|head|install -[md]|chown|` +
	`make|sha256sum|tar|openssl|git|go|ufw|firewall-cmd|update-alternatives|dnf|edgemesh-(agent|relay)|/opt/cni/bin/edgemesh-cni|manifests/[a-z-]+\.sh)( |$)`)

// Each command on the pages is in the ledger, with a test that exists or the reason why there is none; and the ledger has no
// others.
func TestCommands(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ledger))
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{} // rows' commands
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[1], -1) {
			used[m[1]] = false
		}
		if by := strings.TrimSpace(cells[2]); namesTests(t, by) == 0 && !strings.HasPrefix(by, "untested: ") {
			t.Errorf("%s: %s: neither a test nor \"untested: \" and the reason", ledger, strings.TrimSpace(cells[1]))
		}
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(page) == filepath.Base(ledger) {
			continue
		}
		for _, command := range commands(string(text)) {
			found++
			row := ""
			for r := range used {
				if strings.HasPrefix(command, r) && len(r) > len(row) {
					row = r
				}
			}
			if row == "" {
				t.Errorf("%s: %q is not in %s: say which test runs it, or why none does", page, command, ledger)
			}
			used[row] = true
		}
	}
	for r, on := range used {
		if !on {
			t.Errorf("%s: %q is on no page", ledger, r)
		}
	}
	if found < 100 {
		t.Errorf("only %d commands: this test does not understand the pages any longer", found)
	}
}

var (
	fence   = regexp.MustCompile("(?ms)^ *```([a-z]*)$(.*?)^ *```$")
	code    = regexp.MustCompile("`([^`]+)`")
	comment = regexp.MustCompile(`\s+#.*`)
)

// commands are those of a page: in blocks without a language, line by line, and in the text.
func commands(page string) (out []string) {
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		if m[1] != "" {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(m[2], "\\\n", " ")) {
			if line = strings.TrimSpace(comment.ReplaceAllString(line, "")); programs.MatchString(line) {
				out = append(out, line)
			}
		}
	}
	for _, m := range code.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		if c := strings.Join(strings.Fields(m[1]), " "); programs.MatchString(c) && strings.Contains(c, " ") {
			out = append(out, c)
		}
	}
	return out
}

// byLabels has kubectl read from, or enter, a pod that it finds by a workload's labels.
var byLabels = regexp.MustCompile(`\b(logs|exec|cp|attach|port-forward) +(-[a-z-]+[ =]\S+ +)*(ds|daemonset|deploy|deployment|svc|service|statefulset)/`)

// Whoever has a node's credentials makes mirror pods with any labels, so no page or script has an operator read such a pod's words.
func TestPodsAreNamed(t *testing.T) {
	if !byLabels.MatchString("kubectl -n kube-system logs deployment/edgemesh-relay") || !byLabels.MatchString("kubectl exec -n x ds/edgemesh-agent -- sh") {
		t.Fatal("the pattern finds nothing")
	}
	each(t, func(path string, text []byte) {
		if ext := filepath.Ext(path); ext == ".go" || path == "docs/relay.md" && strings.Count(string(text), "logs deployment/") == 1 { // the page says why not
			return
		}
		for i, line := range strings.Split(string(text), "\n") {
			if m := byLabels.FindString(line); m != "" && !strings.Contains(line, "`kubectl logs deployment/…`") {
				t.Errorf("%s:%d: %q takes any pod with the labels: name the pod, by its owner", path, i+1, m)
			}
		}
	})
}
