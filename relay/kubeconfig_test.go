package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/internal/secretfile"
)

// A kubeconfig whose secret other users may read, in itself or in a file of its own, is named in the log, and refused where it belongs
// to one of them.
func TestOpenKubeconfig(t *testing.T) {
	t.Run("token", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		openKubeconfig(t, path, path, "token: secret")
	})
	t.Run("tokenFile", func(t *testing.T) {
		dir := t.TempDir()
		openKubeconfig(t, filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token"), "tokenFile: token")
	})
}

func openKubeconfig(t *testing.T, kubeconfig, path, user string) {
	t.Helper()
	text := fmt.Sprintf(`{current-context: x, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}],
users: [{name: u, user: {%s}}], contexts: [{name: x, context: {cluster: c, user: u}}]}`, user)
	if err := errors.Join(os.WriteFile(path, []byte("secret"), 0o600), os.WriteFile(kubeconfig, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	says := func() (string, error) {
		var out strings.Builder
		err := checkOpen(kubeconfig, slog.New(slog.NewTextHandler(&out, nil)))
		return out.String(), err
	}
	if out, err := says(); out != "" || err != nil {
		t.Errorf("private: %q, %v", out, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := says(); !strings.Contains(out, "level=WARN") || !strings.Contains(out, "chmod 600 "+path) || err != nil {
		t.Errorf("our own: %q, %v", out, err)
	}
	if err := os.Chown(path, 65534, -1); err != nil {
		t.Skip("NOT TESTED: another user's needs root: ", err)
	}
	if out, err := says(); out != "" || !errors.Is(err, secretfile.ErrPermissions) {
		t.Errorf("another user's: %q, %v", out, err)
	}
	if err := os.Chmod(path, 0o640); err != nil { // as a program that renews it leaves it to the relay's group
		t.Fatal(err)
	}
	if out, err := says(); !strings.Contains(out, "level=WARN") || err != nil {
		t.Errorf("another user's, which a group reads: %q, %v", out, err)
	}
}
