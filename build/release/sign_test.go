package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
