package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSign: what a key signs is what openssl verifies; twice gives the same, and another file is refused.
func TestSign(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("NOT TESTED: no openssl")
	}
	for kind, args := range map[string][]string{"ed25519": {"-algorithm", "ed25519"}, "ecdsa": {"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"}} {
		t.Run(kind, func(t *testing.T) {
			o := draft(t)
			o.key = filepath.Join(t.TempDir(), "key.pem")
			if out, err := exec.Command("openssl", append([]string{"genpkey", "-out", o.key}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("openssl genpkey: %v: %s", err, out)
			}
			read := func(name string) []byte {
				t.Helper()
				data, err := os.ReadFile(filepath.Join(o.out, name))
				if err != nil {
					t.Fatal(err)
				}
				return data
			}
			if err := os.WriteFile(filepath.Join(o.out, "artefact"), []byte("x\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, step := range []func() error{o.provenance, o.checksums, o.sign} {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			first := string(read(sumsFile + ".sig"))
			if err := o.sign(); err != nil || string(read(sumsFile+".sig")) != first {
				t.Errorf("a second signature differs (%v)", err)
			}
			verify := func(data []byte, sig string) error {
				t.Helper()
				file, sigFile := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "sig")
				raw, err := base64.StdEncoding.DecodeString(sig)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, data, 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(sigFile, raw, 0o644); err != nil {
					t.Fatal(err)
				}
				out, err := exec.Command("openssl", "pkeyutl", "-verify", "-rawin", "-pubin",
					"-inkey", filepath.Join(o.out, "edgemesh_"+o.number()+".pub"), "-in", file, "-sigfile", sigFile).CombinedOutput()
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			}
			sums := read(sumsFile)
			if err := verify(sums, first[:len(first)-1]); err != nil {
				t.Errorf("%s: %v", sumsFile, err)
			}
			if verify(append(sums, ' '), first[:len(first)-1]) == nil {
				t.Error("other data is verified")
			}
			var envelope struct {
				PayloadType, Payload string
				Signatures           []struct{ Sig string }
			}
			if err := json.Unmarshal(read("edgemesh_"+o.number()+".intoto.jsonl"), &envelope); err != nil || len(envelope.Signatures) != 1 {
				t.Fatalf("%+v, %v", envelope, err)
			}
			payload, err := base64.StdEncoding.DecodeString(envelope.Payload)
			if err != nil || string(payload) != string(read(o.provenanceFile())) {
				t.Errorf("the envelope has not the provenance (%v)", err)
			}
			pae := fmt.Sprintf("DSSEv1 %d %s %d %s", len(envelope.PayloadType), envelope.PayloadType, len(payload), payload)
			if err := verify([]byte(pae), envelope.Signatures[0].Sig); err != nil {
				t.Errorf("provenance: %v", err)
			}
		})
	}
	for name, text := range map[string]string{"none": "", "rubbish": "x"} {
		o := draft(t)
		o.key = filepath.Join(t.TempDir(), name)
		if text != "" {
			if err := os.WriteFile(o.key, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.check(t.Context()); err == nil {
			t.Errorf("%s is taken for a key", name)
		}
	}
}

// TestHelmProvenance: Helm verifies the chart by its .prov file, whose bytes are the same twice, and refuses another chart.
func TestHelmProvenance(t *testing.T) {
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Skip("NOT TESTED: no gpg")
	}
	helm, err := helmTool(t)
	if err != nil {
		t.Skip("NOT TESTED: helm does not build here: ", err)
	}
	home, err := os.MkdirTemp("", "edgemesh-gpg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "gpg-agent").Run()
		_ = os.RemoveAll(home)
	})
	export := func(kind string) string {
		t.Helper()
		if _, err := gpg(t, home, "--quick-generate-key", kind+"@edgemesh.invalid", kind, "sign", "never"); err != nil {
			t.Fatal(err)
		}
		secret, err := gpg(t, home, "--armor", "--export-secret-keys", kind+"@edgemesh.invalid")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), kind+".asc")
		if err := os.WriteFile(file, secret, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	key := export("rsa2048")
	var signed [2][]byte
	for i := range signed {
		o := draft(t)
		o.pgp = key
		if err := errors.Join(o.check(t.Context()), o.chart(), o.helmProvenance()); err != nil {
			t.Fatal(err)
		}
		chart := filepath.Join(o.out, "edgemesh-chart-"+o.number()+".tgz")
		if signed[i], err = os.ReadFile(chart + ".prov"); err != nil {
			t.Fatal(err)
		}
		verify := func() (string, error) {
			out, err := exec.Command(helm, "verify", "--keyring", filepath.Join(o.out, "edgemesh_"+o.number()+".gpg"), chart).CombinedOutput()
			return string(out), err
		}
		if out, err := verify(); err != nil || !strings.Contains(out, "rsa2048@edgemesh.invalid") {
			t.Errorf("helm verify: %v: %s", err, out)
		}
		f, err := os.OpenFile(chart, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if out, err := verify(); err == nil {
			t.Errorf("helm verify takes another chart: %s", out)
		}
	}
	if !bytes.Equal(signed[0], signed[1]) {
		t.Error("two signatures differ")
	}
	o := draft(t)
	o.pgp = export("ed25519")
	if err := o.check(t.Context()); err == nil || !strings.Contains(err.Error(), "not an RSA key") {
		t.Errorf("a key that Helm does not know: %v", err)
	}
	o.pgp = key + ".not"
	if err := o.check(t.Context()); err == nil || !strings.Contains(err.Error(), "--pgp-key") {
		t.Errorf("no such file: %v", err)
	}
	if err := os.WriteFile(o.pgp, []byte("no key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.check(t.Context()); err == nil || !strings.Contains(err.Error(), "gpg --export-secret-keys") {
		t.Errorf("no key: %v", err)
	}
}

// gpg runs GnuPG without a terminal or a passphrase.
func gpg(t *testing.T, home string, args ...string) ([]byte, error) {
	args = append([]string{"--homedir", home, "--batch", "--quiet", "--no-tty", "--pinentry-mode=loopback", "--passphrase="}, args...)
	return exec.CommandContext(t.Context(), "gpg", args...).Output()
}
