package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No secret is left, however it is written; what is none stays.
func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"proxy: http://joe:pass9word@10.1.1.1:3128":                              "proxy: http://REMOVED@10.1.1.1:3128",
		"  token: abc.def-ghi":                                                   "  token: REMOVED",
		`{"password": "a b c", "x": 1}`:                                          `{"password": REMOVED, "x": 1}`,
		"client-key-data: QUJD":                                                  "client-key-data: REMOVED",
		"Authorization: Bearer eyJhbGciOiJSUzI1NiJ9":                             "Authorization: Bearer REMOVED",
		"-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----\n": "-----BEGIN EC PRIVATE KEY-----REMOVED\n",
		"joinSecretFile: /etc/edgemesh/secret":                                   "joinSecretFile: /etc/edgemesh/secret",
		"reason: no join secret is proved":                                       "reason: no join secret is proved",
		"/ip4/5.5.5.5/tcp/1/p2p/12D3KooW":                                        "/ip4/5.5.5.5/tcp/1/p2p/12D3KooW",
	} {
		if got, _ := Clean([]byte(text)); string(got) != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestBundle(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(path, []byte("proxy: http://u:topsecret@h:1\nnodeName: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b Bundle
	b.File("agent.yaml", path)
	b.File("missing", path+"x")
	b.JSON("status.json", map[string]string{"node": "a"})
	list := strings.Join(b.List(), "\n")
	if !strings.Contains(list, "1 secrets removed") || !strings.Contains(list, path) || strings.Contains(list, "missing") {
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
	if len(got) != 2 || got["edgemesh/agent.yaml"] != "proxy: http://REMOVED@h:1\nnodeName: a\n" || !strings.Contains(got["edgemesh/status.json"], `"node": "a"`) {
		t.Errorf("archive: %q", got)
	}
}
