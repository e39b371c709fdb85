package main

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// helmProvenance writes the chart's .prov file, for `helm install --verify`, and the public key as Helm wants it, if there is a
// PGP key: the chart's metadata and the archive's checksum, signed in clear text (helm.sh/docs/topics/provenance).
// Like other signatures these are not in SHA256SUMS.
func (o options) helmProvenance() error {
	if o.pgp == "" {
		return nil
	}
	owner, key, err := o.pgpKey()
	if err != nil {
		return err
	}
	name := "edgemesh-chart-" + o.number() + ".tgz"
	archive, err := os.ReadFile(filepath.Join(o.out, name))
	if err != nil {
		return err
	}
	message := fmt.Appendf(bytes.TrimRight(o.chartAbout, "\n"), "\n\n...\nfiles:\n  %s: sha256:%x\n", name, sha256.Sum256(archive))
	var signed, public bytes.Buffer
	// The commit's time and no salt, so that two signatures are equal.
	noSalt := false
	w, err := clearsign.Encode(&signed, key, &packet.Config{
		DefaultHash: crypto.SHA512, Time: func() time.Time { return o.stamp.Date }, NonDeterministicSignaturesViaNotation: &noSalt,
	})
	if err != nil {
		return err
	}
	if _, err := w.Write(message); err != nil {
		return err
	}
	if err := errors.Join(w.Close(), owner.Serialize(&public)); err != nil {
		return err
	}
	return errors.Join(o.put(name+".prov", signed.Bytes()), o.put("edgemesh_"+o.number()+".gpg", public.Bytes()))
}

// pgpKey is the key of --pgp-key that signs, and its owner with all keys.
func (o options) pgpKey() (*openpgp.Entity, *packet.PrivateKey, error) {
	text, err := os.ReadFile(o.pgp)
	if err != nil {
		return nil, nil, fmt.Errorf("--pgp-key: %w", err)
	}
	owners, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(text))
	if err == nil && (len(owners) != 1 || owners[0].PrivateKey == nil) {
		err = errors.New("not exactly one secret key")
	}
	var key openpgp.Key
	if err == nil {
		var found bool
		key, found = owners[0].SigningKey(time.Now())
		switch {
		case !found || key.PrivateKey == nil:
			err = errors.New("no secret key that signs, or an expired one")
		case key.PrivateKey.PubKeyAlgo != packet.PubKeyAlgoRSA:
			err = errors.New("not an RSA key: Helm 3 verifies no other kind")
		case key.PrivateKey.Encrypted:
			err = errors.New("the key has a passphrase")
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("--pgp-key: %s: %w; export one without a passphrase: gpg --export-secret-keys --armor ID", o.pgp, err)
	}
	return owners[0], key.PrivateKey, nil
}
