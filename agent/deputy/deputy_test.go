package deputy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/p2p/admission/enroll"
)

// Without a certificate nobody is asked, and the error names what to set; a broken one is named.
func TestCertificate(t *testing.T) {
	key, _ := keytest.New(t)
	broken := filepath.Join(t.TempDir(), "node.pem")
	if err := os.WriteFile(broken, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/nonexistent/node.crt": "set membership.kubernetes.nodeCertificate", broken: broken} {
		_, _, err := New(Config{Key: key, Certificate: path}).Write(t.Context(), nil, []mesh.PeerID{"x"}, "POST", "/", nil)
		if err == nil || errors.Is(err, enroll.ErrNobody) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestKeyOfItsOwn: the key is read from the file that is named for it.
func TestKeyOfItsOwn(t *testing.T) {
	key, _ := keytest.New(t)
	cert := filepath.Join(t.TempDir(), "node.crt")
	if err := os.WriteFile(cert, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	const elsewhere = "/nonexistent/node.key"
	_, _, err := New(Config{Key: key, Certificate: cert, CertificateKey: elsewhere}).Write(t.Context(), nil, []mesh.PeerID{"x"}, "POST", "/", nil)
	if err == nil || !strings.Contains(err.Error(), elsewhere) {
		t.Errorf("with a key of its own: %v", err)
	}
}
