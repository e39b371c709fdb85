package join

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/who/identity"
)

// secretN is a secret of a test.
func secretN(n int) Secret {
	return Secret{fmt.Sprintf("secret-number-%04d-%s", n, strings.Repeat("x", minLength))}
}

// A proof counts for what it was made for, and nothing else.
func TestProofIsBound(t *testing.T) {
	right := transcript.Transcript{Protocol: identity.JoinProtocol, Verifier: "relay", Prover: "member", Session: [32]byte{1}, Challenge: [32]byte{2}}
	p := []proof{prove(right, secretN(1))}
	if s, ok := check(right, p, []Secret{secretN(2), secretN(1)}); !ok || s != secretN(1) {
		t.Error("a good proof is refused")
	}
	if _, ok := check(right, p, []Secret{secretN(2)}); ok {
		t.Error("a proof of another secret is accepted")
	}
	for name, change := range map[string]func(*transcript.Transcript){
		"relay":           func(x *transcript.Transcript) { x.Verifier = "relay2" },
		"member":          func(x *transcript.Transcript) { x.Prover = "member2" },
		"session":         func(x *transcript.Transcript) { x.Session[31]++ },
		"challenge":       func(x *transcript.Transcript) { x.Challenge[31]++ },
		"roles":           func(x *transcript.Transcript) { x.Verifier, x.Prover = x.Prover, x.Verifier },
		"shifted lengths": func(x *transcript.Transcript) { x.Verifier, x.Prover = "relaymem", "ber" },
	} {
		other := right
		change(&other)
		if _, ok := check(other, p, []Secret{secretN(1)}); ok {
			t.Errorf("%s: a proof for something else is accepted", name)
		}
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	if out := fmt.Sprintf("%v %+v %#v %s %q", secretN(1), []Secret{secretN(1)}, secretN(1), secretN(1), secretN(1)); strings.Contains(out, "number") {
		t.Errorf("printed: %s", out)
	}
}

func TestLoad(t *testing.T) {
	good := strings.Repeat("a", minLength)
	other := strings.Repeat("b", minLength)
	for _, c := range []struct {
		name, content string
		mode          os.FileMode
		want          int
		err           error
		says          string
	}{
		{"one", good + "\n", 0o600, 1, nil, ""},
		{"two, with a comment", "# new\n" + good + "\n\n# old\n" + other, 0o400, 2, nil, ""},
		{"group may read", good, 0o640, 0, ErrPermissions, "chmod 600"},
		{"others may read", good, 0o604, 0, ErrPermissions, "chmod 600"},
		{"others may write", good, 0o602, 0, ErrPermissions, "chmod 600"},
		{"empty", "\n# nothing\n", 0o600, 0, ErrContent, "urandom"},
		{"short", "hunter2", 0o600, 0, ErrContent, "line 1: 7 characters"},
		{"long", strings.Repeat("a", maxLength+1), 0o600, 0, ErrContent, "line 1"},
		{"three", good + "\n" + other + "\n" + strings.Repeat("c", minLength), 0o600, 0, ErrContent, "line 3: more than 2"},
		{"twice", good + "\n" + good, 0o600, 0, ErrContent, "twice"},
		{"a space", good + " " + other, 0o600, 0, ErrContent, "line 1: only printable"},
		{"binary", good + "\x00", 0o600, 0, ErrContent, "line 1: only printable"},
		{"huge", strings.Repeat("#\n", maxFile), 0o600, 0, ErrContent, "longer than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "join-secret")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			got, err := Load(path)
			if len(got) != c.want || !errors.Is(err, c.err) {
				t.Fatalf("%d secrets, %v; want %d, %v", len(got), err, c.want, c.err)
			}
			if err == nil {
				return
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q does not name %s or say %q", err, path, c.says)
			}
			if strings.Contains(err.Error(), good) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %q repeats the secret", err)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Load(t.TempDir()); !errors.Is(err, ErrPermissions) && !errors.Is(err, ErrContent) {
		t.Errorf("directory: %v", err)
	}
}

// systemd lets one user read a credential by an ACL, which shows as the group's bit.
func TestLoadCredential(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "join-secret")
	if err := os.WriteFile(path, []byte(strings.Repeat("a", minLength)), 0o440); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o440); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); !errors.Is(err, ErrPermissions) {
		t.Errorf("outside of the credentials directory: %v", err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	if _, err := Load(path); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); !errors.Is(err, ErrPermissions) {
		t.Errorf("a credential that all may read: %v", err)
	}
}

// FuzzProofs: what a stranger sends is refused, or is exactly one or two proofs, and nothing behind them is read.
func FuzzProofs(f *testing.F) {
	f.Add(marshal([]proof{{1}}))
	f.Add(marshal([]proof{{1}, {2}}))
	f.Add([]byte{})
	f.Add([]byte{0})
	f.Add([]byte{255, 1, 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		got, err := readProofs(r)
		if err != nil {
			return
		}
		if len(got) < 1 || len(got) > maxSecrets || !bytes.Equal(marshal(got), data[:len(data)-r.Len()]) {
			t.Fatalf("%d proofs of %d bytes", len(got), len(data))
		}
		if _, ok := check(transcript.Transcript{Verifier: "relay", Prover: "member"}, got, []Secret{secretN(1), secretN(2)}); ok {
			t.Fatal("proved without the secret")
		}
	})
}

// FuzzSecrets: a file gives one or two secrets, or an error that does not repeat any of it.
func FuzzSecrets(f *testing.F) {
	f.Add([]byte(strings.Repeat("a", minLength)))
	f.Add([]byte("# comment\r\n" + strings.Repeat("a", minLength) + "\r\n" + strings.Repeat("b", maxLength)))
	f.Add([]byte("\xff\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parse(data)
		if (err == nil) != (len(got) > 0) || len(got) > maxSecrets {
			t.Fatalf("%d secrets, %v", len(got), err)
		}
		for _, s := range got {
			if len(s.text) < minLength || len(s.text) > maxLength || !bytes.Contains(data, []byte(s.text)) {
				t.Fatalf("a secret of %d characters", len(s.text))
			}
		}
		for _, line := range strings.Fields(string(data)) {
			if err != nil && len(line) >= minLength && strings.Contains(err.Error(), line) {
				t.Fatalf("error %q repeats a secret", err)
			}
		}
	})
}
