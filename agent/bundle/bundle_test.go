package bundle

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No secret is left in text, however it is written; what is none stays.
func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"proxy: http://joe:pass9word@10.1.1.1:3128":                              "proxy: http://REMOVED@10.1.1.1:3128",
		"proxy http://joe:pass9@word@h:1 refuses":                                "proxy http://REMOVED@h:1 refuses",
		"HTTP://joe:pass9word@h:1":                                               "HTTP://REMOVED@h:1",
		"joe:pass9word@h:1":                                                      "REMOVED@h:1",
		"joe:/pass9word@h:1":                                                     "REMOVED@h:1",
		"http://joe:pass9/w'o rd@h:1":                                            "http://REMOVED@h:1",
		"http://h/x?token=pass9word&a=pass9word":                                 "http://h/x?token=REMOVED",
		"http://h/x?sig=pass9word&a=pass9word#x":                                 "http://h/x?sig=REMOVED&a=REMOVED",
		"  token: abc.pass9word-ghi":                                             "  token: REMOVED",
		`{"password": "a pass9word c", "x": 1}`:                                  `{"password": REMOVED`,
		`"k8s_auth_token": "pass9word"`:                                          `"k8s_auth_token": REMOVED`,
		`password: "a\"pass9word"`:                                               `password: REMOVED`,
		"password: hunter, and pass9word":                                        "password: REMOVED",
		"password: |\n  pass9word\n\n  pass9word\nuser: joe":                     "password: REMOVED\n  REMOVED\n\n  REMOVED\nuser: joe",
		"- tokens:\n  - pass9word\n  user: joe":                                  "- tokens:REMOVED\n  REMOVED\n  user: joe",
		"tokens: [a, pass9word]":                                                 "tokens: REMOVED",
		"passphrase: pass9word":                                                  "passphrase: REMOVED",
		"apiKey=pass9word":                                                       "apiKey=REMOVED",
		"psk: pass9word":                                                         "psk: REMOVED",
		"client-key-data: cGFzczl3b3Jk":                                          "client-key-data: REMOVED",
		"Authorization: Bearer eyJhbGciOiJSUzI1NiJ9":                             "Authorization: REMOVED",
		"sent Basic am9l":                                                        "sent Basic REMOVED",
		"got eyJhbGciOi.eyJzdWIiOiIx.abc-_9, then":                               "got REMOVED, then",
		"-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----\n": "-----BEGIN EC PRIVATE KEY-----REMOVED\n",
		"joinSecretFile: /etc/edgemesh/secret":                                   "joinSecretFile: /etc/edgemesh/secret",
		"joinSecretFile: /etc/edgemesh/secret: not a join secret":                "joinSecretFile: /etc/edgemesh/secret: not a join secret",
		"reason: no join secret is proved":                                       "reason: no join secret is proved",
		"/ip4/5.5.5.5/tcp/1/p2p/12D3KooW":                                        "/ip4/5.5.5.5/tcp/1/p2p/12D3KooW",
		"until 12:30:11 fe80::1 was 10.1.1.1:3128":                               "until 12:30:11 fe80::1 was 10.1.1.1:3128",
	} {
		got, n := Clean([]byte(text))
		if string(got) != want || (n > 0) != (want != text) {
			t.Errorf("%q: %q (%d), want %q", text, got, n, want)
		}
	}
}

// Of a configuration only the values of known keys stay, and of these only what looks like a value of theirs.
func TestKnownOnly(t *testing.T) {
	for text, want := range map[string]string{
		"nodeName: a # pass9word\ntunQueues: 2\nlan: {native: true}": "lan:\n  native: true\nnodeName: a\ntunQueues: 2\n",
		"proxy: http://joe:p@ss9word@10.1.1.1:3128":                  "proxy: http://REMOVED@10.1.1.1:3128\n",
		"proxy: HTTP://joe:pass9word@h:1":                            "proxy: HTTP://REMOVED@h:1\n",
		"proxy: joe:pass9word@h:1":                                   "proxy: REMOVED@h:1\n",
		"proxy: joe:pass9word":                                       "proxy: REMOVED\n",
		"proxy: http://joe:pass9/w'o rd@h:1":                         "proxy: http://REMOVED@h:1\n",
		"proxy: none":                                                "proxy: none\n",
		"membership: {kubernetes: {server: 'https://[::1]:6443/k8s?token=pass9word'}}": "membership:\n  kubernetes:\n    server: https://[::1]:6443/REMOVED\n",
		"proxyCredentials: joe:pass9word":                                              "proxyCredentials: REMOVED\n",
		"proxyCredentials: /etc/edgemesh/proxy":                                        "proxyCredentials: /etc/edgemesh/proxy\n",
		"joinSecretFile: /cGFzczl3b3Jk":                                                "joinSecretFile: REMOVED\n",
		"joinSecretFile: |\n  pass9word":                                               "joinSecretFile: REMOVED\n",
		"pasword: pass9word":                                                           "pasword: REMOVED\n",
		"tokens: [pass9word]\npin: 1234":                                               "pin: REMOVED\ntokens: REMOVED\n",
		"nodes: {edge-1: {proxy: 'joe:pass9word@h:1', lan: {vxlanPort: 1}}}":           "nodes:\n  edge-1:\n    lan:\n      vxlanPort: 1\n    proxy: REMOVED@h:1\n",
		"nodes: [{name: a, labels: {name: pass9word}}]":                                "nodes:\n- labels: REMOVED\n  name: a\n",
		"cni: {chained: [{type: x, auth: {name: pass9word}, snat: true}]}":             "cni:\n  chained:\n  - auth: REMOVED\n    snat: true\n    type: x\n",
		"listen: [eyJhbGciOi.eyJzdWIiOiIx.pass9word, /ip4/1.1.1.1/tcp/1]":              "listen:\n- REMOVED\n- /ip4/1.1.1.1/tcp/1\n",
		`"joe:pass9word@h": x`:                                                         "REMOVED: REMOVED\n",
	} {
		got, n := knownOnly([]byte(text), false)
		if string(got) != want || strings.Contains(string(got), "pass9") || (n > 0) != strings.Contains(want, Removed) {
			t.Errorf("%q: %q (%d), want %q", text, got, n, want)
		}
	}
	if got, n := knownOnly([]byte(`{"type":"edgemesh-cni","k8s_auth_token":"a\"pass9word"}`), true); n != 1 ||
		string(got) != "{\n  \"k8s_auth_token\": \"REMOVED\",\n  \"type\": \"edgemesh-cni\"\n}" {
		t.Errorf("JSON: %q", got)
	}
}

// What cannot be parsed has no values: its keys, and nothing else.
func TestSkeleton(t *testing.T) {
	for _, text := range []string{
		"proxy: joe: pass9word@h\n  lan: [\npass9word\nmyToken: |\n  pass9word\n",
		"proxy: a\n---\nlan: pass9word\n",
		"\tproxy: pass9word\n lan: 'pass9word",
		`{"proxy": "pass9word", "lan": {`,
	} {
		got, n := knownOnly([]byte(text), false)
		if strings.Contains(string(got), "pass9") || n == 0 || !strings.Contains(string(got), "proxy: REMOVED\n") {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// Status and findings are ours: their texts are searched, their shape stays.
func TestJSON(t *testing.T) {
	var b Bundle
	b.JSON("x", map[string]any{"reason": `dial http://joe:p"a@ss9word@h:1`, "n": 3, "list": []string{"password: pass9word"}})
	var got map[string]any
	if err := json.Unmarshal(b.files[0].body, &got); err != nil || got["reason"] != "dial http://REMOVED@h:1" || got["n"] != 3. || b.files[0].removed != 2 ||
		strings.Contains(string(b.files[0].body), "pass9") {
		t.Errorf("%s: %v", b.files[0].body, err)
	}
}

func TestBundle(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(path, []byte("proxy: http://u:topsecret@h:1\nnodeName: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b Bundle
	b.Config("agent.yaml", path)
	b.File("missing", path+"x")
	b.JSON("status.json", map[string]string{"node": "a"})
	list := strings.Join(b.List(), "\n")
	if !strings.Contains(list, "(1 removed, secret or unknown)") || !strings.Contains(list, path) || strings.Contains(list, "missing") {
		t.Errorf("list:\n%s", list)
	}
	out := filepath.Join(dir, "b.tar.gz")
	if err := b.Write(out); err != nil {
		t.Fatal(err)
	}
	if err := b.Write(out); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file that is there: %v", err)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if err != nil {
			break
		}
		body, _ := io.ReadAll(in)
		got[h.Name] = string(body)
	}
	if len(got) != 2 || got["edgemesh/agent.yaml"] != "nodeName: a\nproxy: http://REMOVED@h:1\n" || !strings.Contains(got["edgemesh/status.json"], `"node": "a"`) {
		t.Errorf("archive: %q", got)
	}
}

// Rules and routes are those of the kernel; metrics come from the agent itself, and an agent that is off has none.
func TestHost(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("edgemesh_up 1\n")) }))
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	var b Bundle
	b.Host(t.Context())
	b.Metrics(t.Context(), "mesh:"+port)
	web.Close()
	b.Metrics(t.Context(), "mesh:"+port)
	b.Metrics(t.Context(), "")
	list := strings.Join(b.List(), "\n")
	if strings.Count(list, "metrics.txt") != 1 || !strings.Contains(list, "host/rules") || !strings.Contains(list, "host/routes") {
		t.Errorf("%s", list)
	}
	for _, f := range b.files {
		if f.name == "host/rules" && !strings.Contains(string(f.body), "32766") { // the rule of table main
			t.Errorf("rules: %s", f.body)
		}
	}
}

// A program that prints without end fills no memory.
func TestProgramIsBounded(t *testing.T) {
	var f first
	if n, err := f.Write(make([]byte, 3*maxFile)); n != 3*maxFile || err != nil || f.Len() != maxFile || f.Cap() > 2*maxFile {
		t.Errorf("%d, %v: %d bytes are kept in %d", n, err, f.Len(), f.Cap())
	}
}
