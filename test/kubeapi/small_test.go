package kubeapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/internal/membership/kube/api"
)

// mostOfMeshNode is what every agent may have to download of one node, in JSON.
const mostOfMeshNode = 8 << 10

// A node's own token writes its MeshNode at every bound, in UTF-8, with characters that JSON escapes, and under ever new names: it
// stays within 8 KiB, managedFields included.
func TestMeshNodeStaysSmall(t *testing.T) {
	t.Parallel()
	c := guarded(t, emptyCluster(t))
	network(t, c, nil)
	token := filepath.Join(c.Dir, "token")
	must(t, c.CreateNode("a"), c.AgentToken("a", token, 3600), c.TokenKubeconfig("a-token.conf", token, c.URL))
	a := login(t, c, "a", "a-token.conf")
	id := newPeerID(t)
	long := strings.Repeat("x", 4000)
	a.wants(t,
		post("a label", meshNodesPath, meshNodeJSON("a", id, `,"labels":{"x":"y"}`)).refused(forbidden, "may not label"),
		post("an annotation", meshNodesPath, meshNodeJSON("a", id, `,"annotations":{"x":"`+long+`"}`)).refused(forbidden, "of annotations"),
		post("an empty annotation", meshNodesPath, meshNodeJSON("a", id, `,"annotations":{"x":""}`)).refused(forbidden, "of annotations"),
		post("a known annotation that is long", meshNodesPath, meshNodeJSON("a", id, `,"annotations":{"`+api.ModeAnnotation+`":"`+long+`"}`)).refused(forbidden, "of annotations"),
		post("its MeshNode", meshNodesPath, meshNodeJSON("a", id, `,"annotations":{"`+api.ModeAnnotation+`":"keep"}`)),
		patch("an annotation", meshNodesPath+"/a", `{"metadata":{"annotations":{"x":"`+long+`"}}}`).refused(forbidden, "of annotations"),
		patch("empty annotations", meshNodesPath+"/a", `{"metadata":{"managedFields":[{}],"annotations":{"x":"","`+long[:63]+`":""}}}`).refused(forbidden, "of annotations"),
		patch("a label", meshNodesPath+"/a", `{"metadata":{"labels":{"x":"y"}}}`).refused(forbidden, "may not label"))
	for what, fields := range map[string]string{
		"a long field":       `"f:spec":{"f:` + strings.Repeat("z", 500<<10) + `":{}}`,
		"a long annotation":  `"f:metadata":{"f:annotations":{"f:` + long + `":{}}}`,
		"a long condition":   `"f:status":{"f:conditions":{"k:{\"type\":\"` + long + `\"}":{}}}`,
		"escaped characters": `"f:status":{"f:conditions":{"k:{\"type\":\"` + strings.Repeat("<", 300) + `\"}":{}}}`,
		"deep fields":        `"f:spec":{"f:a":{"f:b":{"f:c":{"f:d":{}}}}}`,
		"many fields":        `"f:spec":{"f:a":{"f:x":{` + manyFields(500) + `}}}`,
	} {
		a.wants(t, patch(what+" in managedFields", meshNodesPath+"/a", byHand(fields)).refused(forbidden, "under few names"))
	}
	a.wants(t, patch("managedFields as they are", meshNodesPath+"/a?dryRun=All", byHand(`"f:spec":{"f:peerID":{}}`)))
	status := func(messages func(i int) string) string {
		var conditions []map[string]string
		for i, kind := range []string{"Ready", "BlockAllocated", "Healthy", "NAT"} {
			conditions = append(conditions, map[string]string{"type": kind, "status": "Unknown", "reason": strings.Repeat("R", 64),
				"message": messages(i), "lastTransitionTime": "2026-11-26T00:00:00Z"})
		}
		relays := make([]string, 8)
		for i := range relays {
			relays[i] = "/dns4/" + strings.Repeat("r", 103) + "/udp/65535/quic-v1"
		}
		blocks := make([]string, 8)
		for i := range blocks {
			blocks[i] = fmt.Sprintf("fd00:1234:5678:9abc:1234:5678:9abc:%04d/128", i)
		}
		body, err := json.Marshal(map[string]any{"status": map[string]any{"relayAddresses": relays, "podCIDRs": blocks,
			"addresses": []string{blocks[0][:39], blocks[1][:39]}, "agentVersion": strings.Repeat("1", 128), "conditions": conditions}})
		must(t, err)
		return string(body)
	}
	same := func(text string, n int) func(int) string {
		return func(int) string { return strings.Repeat(text, n) }
	}
	for what, messages := range map[string]func(int) string{
		"long messages": same("x", 700), "messages in UTF-8": same("é", 400), "emoji": same("😀", 200), "what JSON escapes": same("<", 200), "quotes": same(`"`, 400),
	} {
		a.wants(t, patch(what, meshNodesPath+"/a/status", status(messages)).refused(http.StatusUnprocessableEntity, "2560 bytes"))
	}
	a.wants(t, patch("control characters", meshNodesPath+"/a/status", status(same("\x01", 50))).refused(http.StatusUnprocessableEntity, "message"))
	size := func() int {
		var m json.RawMessage
		must(t, c.Do(http.MethodGet, meshNodesPath+"/a", nil, &m))
		var compact bytes.Buffer
		must(t, json.Compact(&compact, m))
		return compact.Len()
	}
	for _, text := range []string{"x", "é", "😀", "<", `"`, "\\"} {
		n := 640 / (len(mustJSON(t, text)) - len(`""`))
		refused := 0
		// Under ever new names, by patches and by apply: refused or not, it stays small.
		for i := range 12 {
			body := status(same(text, n-i%2))
			a.do(t, http.MethodPatch, fmt.Sprintf("%s/a/status?fieldManager=%s%d", meshNodesPath, strings.Repeat("m", 100), i), body)
			a.do(t, http.MethodPatch, fmt.Sprintf("%s/a/status?fieldManager=%s%d", meshNodesPath, strings.Repeat("m", 30), i), body)
			if got := a.apply(t, fmt.Sprintf("%s/a/status?force=true&fieldManager=%s%d", meshNodesPath, strings.Repeat("a", 30), i),
				`{"apiVersion":"network.edgemesh.io/v1alpha1","kind":"MeshNode","metadata":{"name":"a"},`+body[1:]); got != http.StatusOK {
				refused++
			}
		}
		if refused == 0 {
			t.Error("a thirteenth name may write")
		}
		if got := size(); got > mostOfMeshNode || got < 4<<10 {
			t.Errorf("%q: %d bytes; at most %d are wanted, and the attack should fill half of them", text, got, mostOfMeshNode)
		} else {
			t.Logf("%q: %d bytes", text, got)
		}
	}
	// By hand, as much as the policy permits.
	a.wants(t, patch("annotations at their bounds", meshNodesPath+"/a", `{"metadata":{"managedFields":[{}],"annotations":{"`+
		api.ModeAnnotation+`":"`+long[:64]+`","`+api.ProofAnnotation+`":"`+long[:64]+`"}}}`))
	most := 2500
	for ; most > 0; most -= 20 {
		if code, _ := a.do(t, http.MethodPatch, meshNodesPath+"/a", byHand(`"f:spec":{"f:`+strings.Repeat("z", most)+`":{}}`)); code == http.StatusOK {
			break
		}
	}
	if got := size(); most < 2000 || got > mostOfMeshNode {
		t.Errorf("a field of %d bytes in managedFields: %d bytes", most, got)
	} else {
		t.Logf("with a field of %d bytes: %d bytes", most, got)
	}
	// The agent itself still writes, beside the controller and an administrator.
	a.wants(t, patch("no managedFields", meshNodesPath+"/a", `{"metadata":{"managedFields":[{}]}}`))
	for _, name := range []string{"kubectl-annotate", "kubectl-label"} {
		must(t, c.Patch(meshNodesPath+"/a?fieldManager="+name,
			json.RawMessage(`{"metadata":{"annotations":{"example.com/`+name+`":"x"},"labels":{"example.com/`+name+`":"x"}}}`)))
	}
	for _, name := range []string{"edgemesh-agent", "edgemesh-controller"} {
		a.wants(t, patch("all of its status as "+name, meshNodesPath+"/a/status?fieldManager="+name, status(same("x", 640-len(name)))),
			patch("its proof as "+name, meshNodesPath+"/a?fieldManager="+name, `{"metadata":{"annotations":{"`+api.ProofAnnotation+`":"`+name+`"}}}`))
	}
	a.wants(t, patch("its status", meshNodesPath+"/a/status", conditionJSON("Ready", "True")).refused(http.StatusUnprocessableEntity, "lastTransitionTime"),
		patch("the proof", meshNodesPath+"/a?dryRun=All", `{"metadata":{"annotations":{"`+api.ProofAnnotation+`":"ABCDEFGHIJKLMNOPQRSTUVWXYZ"}}}`))
}

func mustJSON(t *testing.T, text string) string {
	t.Helper()
	body, err := json.Marshal(text)
	must(t, err)
	return string(body)
}

// apply is a server-side apply, which leaves fields to their other owners, too.
func (a as) apply(t *testing.T, path, body string) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodPatch, a.url+path, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/apply-patch+yaml")
	resp, err := a.http.Do(req)
	must(t, err)
	must(t, resp.Body.Close())
	return resp.StatusCode
}

// byHand is a patch of managedFields, which the API server takes from the request.
func byHand(fields string) string {
	return `{"metadata":{"managedFields":[{"manager":"m","operation":"Update","apiVersion":"network.edgemesh.io/v1alpha1",` +
		`"time":"2026-11-26T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{` + fields + `}}]}}`
}

func manyFields(n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(`"f:field%d":{}`, i)
	}
	return strings.Join(out, ",")
}
