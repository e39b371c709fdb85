package join

import (
	"errors"
	"fmt"
	"strings"

	"edgemesh/internal/secretfile"
)

const (
	// maxSecrets is two: the old and the new one while the secret is rotated.
	maxSecrets = 2
	// minLength and maxLength bound a secret, in characters. A relay sees proofs, so a secret must not be guessable: 24
	// random bytes are 32 characters of base64.
	minLength, maxLength = 32, 512
	// maxFile bounds the file, in bytes.
	maxFile = 4096
)

// Secret is one join secret. It is comparable, and prints as nothing.
type Secret struct{ text string }

// String hides the secret from logs.
func (Secret) String() string { return "(join secret)" }

// GoString hides it from %#v.
func (Secret) GoString() string { return "(join secret)" }

// Load reads the secrets in the file at path. The error names path and what to do. It wraps ErrPermissions if others may
// read the file, ErrContent if it has other than one or two secrets, or the file system's error.
func Load(path string) ([]Secret, error) {
	data, err := secretfile.Read(path, maxFile)
	switch {
	case errors.Is(err, secretfile.ErrContent):
		return nil, fmt.Errorf("%w: %w", ErrContent, err)
	case err != nil:
		return nil, fmt.Errorf("join secret: %w", err)
	}
	secrets, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrContent, err)
	}
	return secrets, nil
}

// parse reads one secret per line. Empty lines and lines that begin with # do not count. Errors do not repeat what is
// written.
func parse(data []byte) ([]Secret, error) {
	var out []Secret
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		switch {
		case strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r > '~' }):
			return nil, fmt.Errorf("line %d: only printable ASCII characters without spaces are allowed", i+1)
		case len(line) < minLength || len(line) > maxLength:
			return nil, fmt.Errorf("line %d: %d characters, %d to %d are allowed; make one by: head -c 32 /dev/urandom | base64", i+1, len(line), minLength, maxLength)
		case len(out) == maxSecrets:
			return nil, fmt.Errorf("line %d: more than %d secrets, the old and the new one; remove those that are no longer used", i+1, maxSecrets)
		case len(out) > 0 && out[0].text == line:
			return nil, fmt.Errorf("line %d: the same secret twice; remove one", i+1)
		}
		out = append(out, Secret{line})
	}
	if len(out) == 0 {
		return nil, errors.New("no secret in it; make one by: head -c 32 /dev/urandom | base64")
	}
	return out, nil
}
