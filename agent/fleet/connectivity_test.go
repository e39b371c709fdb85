package fleet

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeTest is a kubectl whose cluster runs a connectivity test on two ready nodes. What is created is kept in $DIR/created.
const fakeTest = `#!/bin/sh
case "$*" in
*"get meshnodes"*) echo '{"items": [
 {"metadata": {"name": "edge-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
 {"metadata": {"name": "edge-2"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
 {"metadata": {"name": "edge-3"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}]}' ;;
*"get daemonsets.apps,pods -n mesh"*) echo '{"items": [
 {"kind": "Pod", "metadata": {"name": "mirror", "annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {"nodeName": "edge-1", "containers": [{"image": "evil/agent:1"}]}, "status": {"phase": "Running"}},
 {"kind": "DaemonSet", "metadata": {"uid": "ds"}, "spec": {"template": {"spec": {"containers": [{"image": "reg/agent:1"}]}}}},
 {"kind": "Pod", "metadata": {"name": "agent-1", "ownerReferences": [{"uid": "ds", "controller": true}]}, "spec": {"nodeName": "edge-1", "containers": [{"image": "evil/agent:2"}]}, "status": {"phase": "Running"}}]}' ;;
*"create -f -"*) cat >>"$DIR/created"; echo >>"$DIR/created" ;;
*"get services"*) echo '{"items": [{"metadata": {"name": "s0"}, "spec": {"clusterIP": "10.96.0.10"}}, {"metadata": {"name": "s1"}, "spec": {"clusterIP": "fd00::11"}}]}' ;;
*"edgemesh-role=serve"*) echo '{"items": [
 {"spec": {"nodeName": "edge-1"}, "status": {"phase": "Running", "podIP": "10.244.1.9", "podIPs": [{"ip": "10.244.1.9"}, {"ip": "fd01:1::9"}]}},
 {"spec": {"nodeName": "edge-2"}, "status": {"phase": "SERVE2", "podIP": "fd01::9", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "gone"}}}]}}]}' ;;
*"edgemesh-role=try"*) echo '{"items": [
 {"spec": {"nodeName": "edge-1"}, "status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"message": "RESULT1"}}}]}},
 {"spec": {"nodeName": "edge-2"}, "status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"message": "{\"answered\": 6, \"failed\": []}"}}}]}}]}' ;;
*"delete namespace"*) echo "$*" >>"$DIR/deleted" ;;
*) echo "$*" >&2; exit 1 ;;
esac
`

// tryOut runs a test of that cluster, changed by some strings, and returns what was created and deleted, too.
func tryOut(t *testing.T, args []string, change ...string) (code int, out, created, deleted string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("DIR", dir)
	script := strings.NewReplacer(append(change, "SERVE2", "Running", "RESULT1", `{\"answered\": 6, \"failed\": []}`)...).Replace(fakeTest)
	code, out = run(t, script, append([]string{"connectivity-test", "--wait", "1s"}, args...)...)
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return string(b)
	}
	return code, out, read("created"), read("deleted")
}

// Where all pods reach each other, it says so, and leaves nothing.
func TestConnectivity(t *testing.T) {
	code, out, created, deleted := tryOut(t, nil)
	contains(t, out, "2 nodes: 12 requests answered, 0 failed")
	contains(t, created, `"kind":"Namespace"`, `"nodeName":"edge-2"`, `"image":"reg/agent:1"`, `"connectivity","serve"`,
		"ip/edge-1=http://10.244.1.9:8080/", "ip/edge-2=http://[fd01::9]:8080/", "service/edge-1=http://10.96.0.10:8080/", "service/edge-2=http://[fd00::11]:8080/",
		"second-ip/edge-1=http://[fd01:1::9]:8080/", "dns/edge-2=http://s1.edgemesh-connectivity.svc:8080/")
	if code != 0 || strings.Contains(created, "edge-3") || !strings.Contains(deleted, "delete namespace edgemesh-connectivity --wait=false") {
		t.Errorf("code %d, deleted %q:\n%s", code, deleted, out)
	}
	for line := range strings.Lines(created) {
		if !json.Valid([]byte(line)) {
			t.Errorf("%s", line)
		}
	}
	code, out, _, _ = tryOut(t, []string{"--json"})
	var got tested
	if _, text, _ := strings.Cut(out, "{"); json.Unmarshal([]byte("{"+text), &got) != nil || code != 0 || got.Answered != 12 || len(got.Nodes) != 2 {
		t.Errorf("code %d: %s", code, out)
	}
}

// Who does not reach whom is named, with what to look at; nothing is left in any case.
func TestConnectivityFails(t *testing.T) {
	result := func(ways ...string) string {
		var failed []string
		for _, w := range ways {
			failed = append(failed, `{\"to\": \"`+w+`/edge-2\", \"error\": \"timed out\"}`)
		}
		return `{\"answered\": 3, \"failed\": [` + strings.Join(failed, ",") + `], \"more\": 5}`
	}
	for name, c := range map[string]struct {
		args, change []string
		says         []string
	}{
		"no way":     {nil, []string{"RESULT1", result("ip", "service", "dns")}, []string{"edge-1 → edge-2 by ip: timed out", "edge-1: 5 more requests failed", "9 requests answered, 8 failed", "kubectl edgemesh doctor edge-1 edge-2"}},
		"Services":   {nil, []string{"RESULT1", result("service", "dns")}, []string{"by service", "kube-proxy"}},
		"names":      {nil, []string{"RESULT1", result("dns")}, []string{"by dns", "CoreDNS"}},
		"no pod":     {nil, []string{"SERVE2", "Pending"}, []string{"edge-2: its pod does not run: ErrImagePull: gone"}},
		"no result":  {nil, []string{"RESULT1", "rubbish"}, []string{"edge-1: its pod gave no result"}},
		"refused":    {nil, []string{`cat >>"$DIR/created"`, "echo Forbidden >&2; exit 1"}, []string{"kubectl create: Forbidden"}},
		"no such":    {[]string{"--nodes", "edge-1,egde-2"}, nil, []string{"egde-2: no such MeshNode"}},
		"only one":   {[]string{"--nodes", "edge-1"}, nil, []string{"--nodes: name two nodes or more"}},
		"one ready":  {nil, []string{`"True"`, `"False"`}, []string{"fewer than two nodes"}},
		"dual-stack": {nil, []string{"RESULT1", result("second-ip")}, []string{"by second-ip", "kubectl edgemesh doctor edge-1 edge-2"}},
		"no image":   {nil, []string{`"image": "reg/agent:1"`, `"name": "x"`, "DaemonSet", "Other"}, []string{"no agent runs as a DaemonSet's pod"}},
		"no cleanup": {nil, []string{`echo "$*" >>"$DIR/deleted"`, "exit 1"}, []string{"clean up: ", "kubectl delete namespace"}},
	} {
		code, out, created, deleted := tryOut(t, c.args, c.change...)
		contains(t, out, c.says...)
		if code != 1 {
			t.Errorf("%s: code %d:\n%s", name, code, out)
		}
		if created != "" && deleted == "" && name != "no cleanup" {
			t.Errorf("%s: the namespace stays", name)
		}
	}
}
