package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// helmProvenance writes the chart's .prov file, for `helm install --verify`, and the public key as Helm wants it, if there is a
// PGP key: what the chart says of itself and the archive's checksum, signed in clear text (helm.sh/docs/topics/provenance).
// Like other signatures these are not in SHA256SUMS.
func (o options) helmProvenance(ctx context.Context) error {
	if o.pgp == "" {
		return nil
	}
	home, err := o.keyring(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "gpg-agent").Run() // it would stay for a while
		_ = os.RemoveAll(home)
	}()
	name := "edgemesh-chart-" + o.number() + ".tgz"
	archive, err := os.ReadFile(filepath.Join(o.out, name))
	if err != nil {
		return err
	}
	message := fmt.Appendf(bytes.TrimRight(o.chartAbout, "\n"), "\n\n...\nfiles:\n  %s: sha256:%x\n", name, sha256.Sum256(archive))
	// The commit's time in place of the day's, so that two signatures are equal. Keys made since then would not be valid
	// yet, which only a warning needs.
	at := fmt.Sprintf("--faked-system-time=%d!", o.stamp.Date.Unix())
	signed, err := gpg(ctx, home, message, at, "--ignore-time-conflict", "--ignore-valid-from", "--digest-algo=SHA512", "--clear-sign")
	if err != nil {
		return err
	}
	if err := o.put(name+".prov", signed); err != nil {
		return err
	}
	public, err := gpg(ctx, home, nil, "--export")
	if err != nil {
		return err
	}
	return o.put("edgemesh_"+o.number()+".gpg", public)
}

// keyring is a home of GnuPG's that has the key alone. The caller removes it.
func (o options) keyring(ctx context.Context) (string, error) {
	text, err := os.ReadFile(o.pgp)
	if err != nil {
		return "", fmt.Errorf("--pgp-key: %w", err)
	}
	home, err := os.MkdirTemp("", "edgemesh-gpg-") // 0700, and short: it has a socket
	if err != nil {
		return "", err
	}
	if _, err = gpg(ctx, home, text, "--import"); err == nil {
		var keys []byte
		keys, err = gpg(ctx, home, nil, "--list-secret-keys", "--with-colons")
		found := regexp.MustCompile(`(?m)^sec:[^:]*:[^:]*:([^:]*):`).FindAllSubmatch(keys, -1)
		switch {
		case err != nil:
		case len(found) != 1:
			err = errors.New("not exactly one secret key")
		case string(found[0][1]) != "1":
			err = errors.New("not an RSA key: Helm 3 verifies no other kind")
		}
	}
	if err != nil {
		_ = os.RemoveAll(home)
		return "", fmt.Errorf("--pgp-key: %s: %w; export one without a passphrase: gpg --export-secret-keys --armor ID", o.pgp, err)
	}
	return home, nil
}

// gpg runs GnuPG, which asks nobody.
func gpg(ctx context.Context, home string, in []byte, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--no-tty", "--pinentry-mode=loopback", "--passphrase="}, args...)...)
	var said bytes.Buffer
	c.Stdin, c.Stderr = bytes.NewReader(in), &said
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("gpg: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return out, nil
}
