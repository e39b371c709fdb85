package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/cli"
	"edgemesh/internal/version"
	"edgemesh/internal/wording/wordingtest"
)

// fake is a kubectl whose cluster has three nodes: on edge-1 all is well, edge-2 has trouble, edge-3 cannot be reached,
// and edge-4 has no pod.
const fake = `#!/bin/sh
case "$*" in
*"get meshnodes"*) cat <<'END'
{"items": [
 {"metadata": {"name": "edge-2"}, "status": {"agentVersion": "v0.2.0", "conditions": [{"type": "Ready", "status": "True"}]}},
 {"metadata": {"name": "edge-1"}, "status": {"agentVersion": "v0.2.0", "conditions": [{"type": "Ready", "status": "True"}]}},
 {"metadata": {"name": "edge-3"}, "status": {"agentVersion": "v0.1.0", "conditions": [{"type": "Ready", "status": "Unknown", "message": "no relay has seen it"}]}},
 {"metadata": {"name": "edge-4"}, "status": {"agentVersion": "v0.2.0", "conditions": [{"type": "Ready", "status": "True"}]}}]}
END
;;
*"get deployments.apps -n mesh"*) cat <<'END'
{"items": [
 {"kind": "Deployment", "metadata": {"name": "edgemesh-controller"}, "spec": {"replicas": 2, "template": {"spec": {"affinity": {"nodeAffinity": {
  "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "node-role.kubernetes.io/control-plane"}]},
  {"matchExpressions": [{"key": "node-restriction.kubernetes.io/trusted"}]}]}}}}}}, "status": {"availableReplicas": 1, "updatedReplicas": 2}}]}
END
;;
*"get daemonsets.apps,pods -n mesh"*) cat <<'END'
{"items": [
 {"kind": "DaemonSet", "metadata": {"name": "edgemesh-agent", "uid": "ds"}, "spec": {"template": {"spec": {"containers": [{"image": "reg/agent:1"}]}}}},
 {"kind": "Pod", "metadata": {"name": "controller-2", "labels": {"app.kubernetes.io/component": "controller"}}, "spec": {}, "status": {"phase": "Pending",
  "conditions": [{"type": "PodScheduled", "status": "True", "message": "0/3 nodes are available"}]}},
 {"kind": "Pod", "metadata": {"name": "old-1", "deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [{"uid": "ds", "controller": true}]}, "spec": {"nodeName": "edge-1"}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "agent-1", "ownerReferences": [{"uid": "ds", "controller": true}]}, "spec": {"nodeName": "edge-1"}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "agent-2", "ownerReferences": [{"uid": "ds", "controller": true}]}, "spec": {"nodeName": "edge-2"}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "agent-3", "ownerReferences": [{"uid": "ds", "controller": true}]}, "spec": {"nodeName": "edge-3"}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "agent-4", "ownerReferences": [{"uid": "ds", "controller": true}]}, "spec": {"nodeName": "edge-4"}, "status": {"phase": "Pending"}},
 {"kind": "Pod", "metadata": {"name": "mirror", "annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": [{"uid": "ds", "controller": true}]}, "spec": {"nodeName": "MIRROR"}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "own", "ownerReferences": [{"uid": "node", "controller": true}]}, "spec": {"nodeName": "OWN"}, "status": {"phase": "Running"}}]}
END
;;
*"exec -n mesh agent-1 -c agent -- edgemesh-agent status --json"*) cat <<'END'
{"node": "edge-1", "site": "berlin", "nat": {"kind": "stable"}, "relays": [{"reserved": true}, {}],
 "peers": [{"node": "edge-2", "path": "native"}, {"node": "edge-3", "path": "relayed"}, {"node": "edge-4", "path": "idle"}]}
END
;;
*"exec -n mesh agent-2 -c agent -- edgemesh-agent status --json"*) cat <<'END'
{"node": "edge-2", "nat": {"kind": "random"}, "relays": [{"error": "refused\u001b[31m"}], "peers": [{"node": "edge-1", "path": "none"}],
 "problems": [{"check": "forwarding", "severity": "broken", "detail": "it is off\u001b[31m", "remedy": "switch it on"}]}
END
;;
*"agent-3"*) echo "error: dial tcp 192.168.1.9:10250: i/o timeout" >&2; exit 1 ;;
*"agent-1 -c agent -- edgemesh-agent doctor --json"*) echo '[{"check": "key", "severity": "ok", "detail": "fine"}]' ;;
*"agent-2 -c agent -- edgemesh-agent doctor --json"*)
 echo '[{"check": "pool", "severity": "broken", "detail": "no addresses", "remedy": "delete pods"}]'
 echo "command terminated with exit code 1" >&2; exit 1 ;;
*) echo "ran: $*"; exit 7 ;;
esac
`

// TestMap: the agent's page is at a port of this machine while it runs; a node that prints anything else, or whose port is taken here, has none.
func TestMap(t *testing.T) {
	const maps = `#!/bin/sh
case "$*" in
*"exec -i -n mesh agent-1 -c agent -- edgemesh-agent map --listen 127.0.0.1:0 --until-eof") echo "http://127.0.0.1:4711/?token=abc123"; exec sleep 1 ;;
*"exec -i -n mesh agent-2 "*) echo "http://127.0.0.1:4711/?token=abc\033[31m" ; exec sleep 5 ;;
*"port-forward -n mesh pod/agent-1 "[1-9]*":4711") echo "forwarded" >&2; exec sleep 5 ;;
esac
`
	script := maps + strings.TrimPrefix(fake, "#!/bin/sh\n")
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := strings.Cut(taken.Addr().String(), ":")
	for _, x := range []struct{ args, want string }{
		{"map edge-1 --port 0", "/?token=abc123"},
		{"map edge-1 --port 0", "forwarded"},
		{"map edge-1 --port 0", "edge-1: its map has ended"},
		{"map edge-1 --port " + port, "choose another one"},
		{"map edge-2", "edge-2: its map has ended"},
		{"map edge-9", "no such MeshNode"},
		{"map", "NODE"},
	} {
		code, out := run(t, script, strings.Fields(x.args)...)
		if contains(t, out, x.want); code == 0 || strings.Contains(out, "\033") {
			t.Errorf("%s: code %d\n%q", x.args, code, out)
		}
	}
}

// run runs a command line of the plugin with that kubectl.
func run(t *testing.T, script string, args ...string) (code int, out string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECTL", file)
	var b, complaint strings.Builder
	code = Execute(t.Context(), append([]string{"-n", "mesh", "--timeout", "1m"}, args...), strings.NewReader(""), &b, &complaint)
	return code, complaint.String() + b.String()
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in\n%s", p, text)
		}
	}
}

// What nobody sees is not waited for: 200 of them, 16 at a time, for 20 s each would be four minutes.
func TestPatience(t *testing.T) {
	for ready, want := range map[string]time.Duration{"True": 20 * time.Second, "False": 20 * time.Second, "": 20 * time.Second, "Unknown": ofUnseen} {
		if got := (&cluster{timeout: 20 * time.Second}).patience(member{Ready: ready}); got != want {
			t.Errorf("Ready=%q: %v, want %v", ready, got, want)
		}
	}
	if got := (&cluster{timeout: time.Second}).patience(member{Ready: "Unknown"}); got != time.Second {
		t.Errorf("--timeout 1s: %v", got)
	}
}

// All nodes are summed up; those with trouble have a line that says which, those that are not reached as others see them.
func TestStatus(t *testing.T) {
	code, out := run(t, fake, "status")
	if code != 0 || strings.Contains(out, "\x1b") || strings.Contains(out, "edge-1 ") {
		t.Errorf("code %d:\n%q", code, out)
	}
	contains(t, out, "nodes     4: 3 ready, 2 reached", "versions  v0.1.0 (1), v0.2.0 (3)", "paths     4: 1 native, 1 relayed, 1 none, 1 idle",
		"TROUBLE on 3 of 4 nodes: edge-2: no relay: refused?[31m; no path to edge-1; it is off?[31m\n", "next: `kubectl edgemesh doctor edge-2`", "edge-2: broken: forwarding: it is off?[31m\n  → switch it on",
		"not ready: no relay has seen it; not reached: error: dial tcp 192.168.1.9:10250: i/o timeout; to the others it is 1 relayed",
		"no agent's pod runs there", "to the others it is 1 idle", "1 node without trouble")
	// The worst node comes first in each part, whatever the nodes' names are.
	warned := strings.Replace(fake, `"nat": {"kind": "stable"}`, `"findings": [{"id": "clock", "severity": "warning", "text": "wrong"}], "nat": {"kind": "stable"}`, 1)
	_, out = run(t, warned, "status")
	contains(t, out, "TROUBLE on 4 of 4 nodes: edge-2: ", "next: `kubectl edgemesh doctor edge-2`")
	for _, part := range [][]string{{"\nedge-2  broken ", "\nedge-3  unreached ", "\nedge-4  unreached ", "\nedge-1  warning "}, {"\nedge-2: broken: ", "\nedge-1: warning: clock"}} {
		at := -1
		for _, row := range part {
			if i := strings.Index(out, row); i <= at {
				t.Errorf("%q is not after the worse ones:\n%s", row, out)
			} else {
				at = i
			}
		}
	}
	if _, out := run(t, strings.Replace(fake, `"problems": [`, `"findings": [`, 1), "status"); !strings.Contains(out, "edge-2: it is off") {
		t.Errorf("what an agent judges itself is judged again:\n%s", out)
	}
	for kubectl, want := range map[string]int{fake: 1, strings.Replace(fake, `"severity": "broken", "detail": "it`, `"severity": "warning", "detail": "it`, 1): 0,
		strings.ReplaceAll(fake, `"Running"`, `"Pending"`): 1} {
		if code, out := run(t, kubectl, "status", "--check"); code != want {
			t.Errorf("--check: code %d, want %d:\n%s", code, want, out)
		}
	}
	_, out = run(t, fake, "status", "--all")
	contains(t, out, "edge-1  ok         True", "berlin  stable  1/2", "3: 1 native, 1 relayed, 1 idle")
}

func TestStatusJSON(t *testing.T) {
	_, out := run(t, fake, "status", "--json")
	var got struct{ Nodes []state }
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Nodes) != 4 {
		t.Fatalf("%v:\n%s", err, out)
	}
	if n := got.Nodes[0]; n.Node != "edge-1" || n.Pod != "agent-1" || n.Status == nil || n.Status.Site != "berlin" {
		t.Errorf("%+v", n)
	}
	if n := got.Nodes[2]; n.Node != "edge-3" || n.Status != nil || !strings.Contains(n.Error, "timeout") {
		t.Errorf("%+v", n)
	}
}

// What is broken on any node fails; who was not reached is named.
func TestDoctor(t *testing.T) {
	code, out := run(t, fake, "doctor")
	contains(t, out, "edge-2: broken: pool: no addresses\n  → delete pods", "edge-3: not reached: error: dial tcp", "4 nodes: 2 checked, something is broken on 1")
	if code != 1 || strings.Contains(out, "key") {
		t.Errorf("code %d:\n%s", code, out)
	}
	code, out = run(t, strings.ReplaceAll(fake, `"severity": "broken"`, `"severity": "warning"`), "doctor", "--json")
	var got struct{ Nodes []examined }
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || len(got.Nodes) != 4 {
		t.Errorf("%v, code %d:\n%s", err, code, out)
	}
	if code, _ := run(t, strings.ReplaceAll(fake, `"Running"`, `"Pending"`), "doctor"); code != 1 {
		t.Errorf("nobody was reached: code %d", code)
	}
}

// A command for one node is its agent's: arguments, options, output and exit code.
func TestPass(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"ping edge-2 10.1.1.1 --count 2", "exec -n mesh agent-2 -c agent -- edgemesh-agent ping 10.1.1.1 --count 2"},
		{"status edge-2 --path none", "agent-2 -c agent -- edgemesh-agent status --path none"},
		{"capture edge-2 --write -", "agent-2 -c agent -- edgemesh-agent capture --write -"},
		{"doctor edge-2 edge-1", "agent-2 -c agent -- edgemesh-agent doctor edge-1"},
		{"--context lab netcheck edge-2 --json", "ran: --context=lab exec -n mesh agent-2 -c agent -- edgemesh-agent netcheck --json"},
	} {
		code, out := run(t, fake, strings.Fields(c.args)...)
		if contains(t, out, c.want); code != 7 {
			t.Errorf("%s: code %d", c.args, code)
		}
	}
	hostile := strings.ReplaceAll(fake, "exit 7", `printf '\033[2J→'; printf '\033]0;x' >&2; exit 7`)
	if _, out := run(t, hostile, "doctor", "edge-2"); strings.Contains(out, "\x1b") || !strings.Contains(out, "?[2J→") || !strings.Contains(out, "?]0;x") {
		t.Errorf("%q", out)
	}
	if _, out := run(t, hostile, "capture", "edge-2", "--write=-"); !strings.Contains(out, "\x1b[2J") {
		t.Errorf("packets are changed: %q", out)
	}
	// What fails before it has written anything leaves no file, which would be in the way of the next try.
	none := filepath.Join(t.TempDir(), "none")
	if code, _ := run(t, strings.Replace(fake, "#!/bin/sh\n", "#!/bin/sh\ncase \"$*\" in *edgemesh-agent*) exit 1 ;; esac\n", 1), "capture", "edge-2", "--write", none); code != 1 {
		t.Errorf("an agent that fails: exit %d", code)
	}
	if _, err := os.Stat(none); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a failed capture: %v", err)
	}
	for _, options := range [][]string{{"capture", "edge-2", "--write"}, {"doctor", "edge-2", "--bundle"}} {
		file := filepath.Join(t.TempDir(), "file")
		code, out := run(t, hostile, append(options, file)...)
		got, err := os.ReadFile(file)
		if err != nil || code != 7 || !strings.HasSuffix(string(got), "\x1b[2J→") || strings.Contains(out, "→") {
			t.Errorf("%v: %v, code %d, file %q, output %q", options, err, code, got, out)
		}
		if code, out = run(t, hostile, append(options, file)...); code != 1 || !strings.Contains(out, "file exists") {
			t.Errorf("over a file that is there: code %d, %s", code, out)
		}
		if got, _, _ := streamed(append(options[2:], file)); got[1] != "-" {
			t.Errorf("the pod would write the file: %v", got)
		}
	}
}

// A pod that a kubelet made, with the agents' labels, is nobody's agent, whichever owner it claims.
func TestKubeletsPods(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"MIRROR", "edge-4", "edge-4: its agent's pod is a static one"},
		{"OWN", "edge-4", "edge-4: no agent's pod runs there"},
		{"MIRROR", "edge-2", "exec -n mesh agent-2 "},
		{"OWN", "edge-2", "exec -n mesh agent-2 "},
	} {
		_, out := run(t, strings.Replace(fake, c.from, c.to, 1), "netcheck", c.to)
		contains(t, out, c.want)
	}
}

// Where no controller runs, status and doctor say so, with the reason and the label that its Deployment names.
func TestLeaderless(t *testing.T) {
	pending := strings.Replace(fake, `"PodScheduled", "status": "True"`, `"PodScheduled", "status": "False"`, 1)
	gone := strings.Replace(pending, `"availableReplicas": 1`, `"availableReplicas": 0`, 1)
	for _, command := range []string{"status", "doctor"} {
		_, out := run(t, gone, command)
		contains(t, out, "cluster: warning: controller: no controller runs: 0/3 nodes are available\n", "kubectl label node NODE node-restriction.kubernetes.io/trusted= (the chart's controller.label)")
		if _, out := run(t, fake, command); strings.Contains(out, "controller") {
			t.Errorf("one of two runs: %s", out)
		}
		_, out = run(t, pending, command)
		contains(t, out, "cluster: warning: controller: a controller's pod cannot run: 0/3 nodes are available\n", "kubectl label node NODE node-restriction.kubernetes.io/trusted=")
		_, out = run(t, strings.Replace(fake, `"updatedReplicas": 2`, `"updatedReplicas": 1`, 1), command)
		contains(t, out, "cluster: warning: controller: a controller's pod is not of the Deployment's version yet\n")
		forbidden := strings.Replace(pending, `*"get deployments.apps -n mesh"*)`, `*"get deployments.apps -n mesh"*) echo "(Forbidden)" >&2; exit 1;`, 1)
		_, out = run(t, forbidden, command)
		if contains(t, out, "edge-2"); strings.Contains(out, "controller") {
			t.Errorf("without the right to list Deployments: %s", out)
		}
		if _, out := run(t, strings.Replace(gone, `"replicas": 2`, `"replicas": 0`, 1), command); strings.Contains(out, "no controller") {
			t.Errorf("none shall run: %s", out)
		}
		_, out = run(t, gone, command, "--json")
		var got struct{ Findings []struct{ ID string } }
		if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Findings) != 1 || got.Findings[0].ID != "controller" {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// Mistakes are named, with what to do.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ script, args, want string }{
		{fake, "ping egde-2 x", "egde-2: no such MeshNode"},
		{fake, "netcheck edge-4", "edge-4: no agent's pod runs there"},
		{"#!/bin/sh\necho Forbidden >&2\nexit 1\n", "status", "list MeshNodes: Forbidden"},
		{"#!/bin/sh\necho rubbish\n", "status", "read kubectl's answer"},
		{"#!/bin/sh\necho 'Error from server (Forbidden): no' >&2\nexit 1\n", "doctor", "it takes the rights to list MeshNodes, DaemonSets and pods"},
		{"#!/bin/sh\necho \"error: the server doesn't have a resource type\" >&2\nexit 1\n", "status", "the pod network is not installed in this cluster"},
		{strings.ReplaceAll(fake, `{"node": "edge-1", "site"`, "<html>"), "status --all", "not reached: its answer cannot be read"},
		{strings.ReplaceAll(fake, `*"agent-3"*)`, `*"agent-3"*) head -c 100000000 /dev/zero;`), "status --all", "not reached: the answer is too long"},
	} {
		code, out := run(t, c.script, strings.Fields(c.args)...)
		if contains(t, out, c.want); code != 1 && !strings.HasPrefix(c.args, "status --all") {
			t.Errorf("%s: code %d", c.args, code)
		}
	}
	t.Setenv("KUBECTL", "/nowhere/kubectl")
	var b strings.Builder
	if code := Execute(t.Context(), []string{"status"}, nil, &b, &b); code != 1 || !strings.Contains(b.String(), "kubectl") {
		t.Errorf("without kubectl: code %d: %s", code, &b)
	}
}

// An agent of another release that refuses a command line is named with its release; one of the same is not.
func TestOtherRelease(t *testing.T) {
	old := strings.ReplaceAll(fake, "exit 7", "echo unknown command >&2; exit 2")
	code, out := run(t, old, "netcheck", "edge-2")
	if contains(t, out, "edge-2 may not know this; its agent is v0.2.0, and kubectl edgemesh "+version.Number()); code != 2 {
		t.Errorf("code %d", code)
	}
	if _, out := run(t, strings.ReplaceAll(old, "v0.2.0", version.Number()), "netcheck", "edge-2"); strings.Contains(out, "may not know") {
		t.Error(out)
	}
}

// Pages are made for all commands, and kubectl's completion is answered.
func TestManAndCompletion(t *testing.T) {
	dir := t.TempDir()
	if code, out := run(t, fake, "man", dir); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	page, err := os.ReadFile(filepath.Join(dir, "kubectl-edgemesh-doctor.1"))
	if err != nil || !strings.Contains(string(page), "Have every agent check its node") {
		t.Errorf("%v: %s", err, page)
	}
	if code, out := run(t, fake, "__complete", "stat"); code != 0 || !strings.Contains(out, "status\t") {
		t.Errorf("code %d: %s", code, out)
	}
	if code, _ := run(t, fake, "man"); code != cli.ExitUsage {
		t.Errorf("man without a directory: code %d", code)
	}
}

// A mistake in the command line says what is missing and where the help is, and exits with 2; kubectl's log is left out.
// A cluster without members is not well.
func TestNoMembers(t *testing.T) {
	code, out := run(t, "#!/bin/sh\necho '{\"items\": []}'\n", "status")
	if contains(t, out, "no agent has joined"); code != 1 {
		t.Errorf("code %d", code)
	}
	code, out = run(t, "#!/bin/sh\necho '{\"items\": []}'\n", "status", "--json")
	if contains(t, out, `"nodes": []`, "no agent has joined"); code != 1 {
		t.Errorf("as JSON: code %d", code)
	}
	if code, out := run(t, fake, "version"); code != 0 || !strings.HasPrefix(out, "edgemesh "+strings.TrimPrefix(version.Number(), "v")+" (commit ") {
		t.Errorf("version: code %d: %s", code, out)
	}
}

func TestUsage(t *testing.T) {
	for line, want := range map[string]string{
		"ping": "NODE TARGET is missing (see `kubectl edgemesh ping --help`)", "ping a": "TARGET is missing", "capture": "NODE is missing",
		"nope": `unknown command "nope" (see`, "statsu": "(did you mean status?)", "map": "NODE is missing",
		"connectivity-test x": `unexpected argument "x"`, "status --foo": "unknown flag: --foo (see",
	} {
		var b strings.Builder
		if code := Execute(t.Context(), strings.Fields(line), nil, &b, &b); code != 2 || !strings.Contains(b.String(), want) {
			t.Errorf("%q: %d, %q", line, code, b.String())
		}
	}
	log := "E1122 02:43:04.671509   32476 memcache.go:265] \"Unhandled Error\" err=\"x\"\n"
	for complaint, want := range map[string]string{log + log + "The connection was refused\n": "The connection was refused", "no\nway\n": "no; way", log: strings.TrimSpace(log)} {
		if got := said(complaint); got != want {
			t.Errorf("%q: %q, want %q", complaint, got, want)
		}
	}
}

// Every text of a MeshNode, which its node writes itself, is bounded and printable.
func TestMembersOfALiar(t *testing.T) {
	say, _ := json.Marshal(wordingtest.Hostile())
	file := filepath.Join(t.TempDir(), "kubectl")
	script := `#!/bin/sh
case "$*" in
*meshnodes*) cat <<'END'
{"items": [{"metadata": {"name": "a"}, "status": {"agentVersion": SAY, "conditions": [{"type": "Ready", "status": SAY, "message": SAY}]}}]}
END
;;
*) echo '{"items": []}' ;;
esac
`
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(script, "SAY", string(say))), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECTL", file)
	var b strings.Builder
	Execute(t.Context(), []string{"status"}, nil, &b, &b)
	for line := range strings.Lines(b.String()) {
		if bad := wordingtest.Bad(strings.TrimSuffix(line, "\n"), 4<<10); bad != "" {
			t.Errorf("a line of %d bytes %s: %.200q", len(line), bad, line)
		}
	}
	if !strings.Contains(b.String(), "broken:") {
		t.Errorf("it is not what the node says:\n%.500s", b.String())
	}
}

// TestBounded: what a node sends without end fills no disk of the operator's.
func TestBounded(t *testing.T) {
	var out bytes.Buffer
	b := &bounded{to: &out, left: 10, most: errMostSaved}
	if n, err := b.Write(make([]byte, 10)); n != 10 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := b.Write([]byte{1}); n != 0 || !errors.Is(err, errMostSaved) || !errors.Is(b.err, errMostSaved) || out.Len() != 10 {
		t.Errorf("beyond the bound: %d, %v, %d bytes written", n, err, out.Len())
	}
}
