package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sources is a hash of the program text of carriers and benchmark, tests not included.
func sources(root string) (string, error) {
	all := sha256.New()
	for _, dir := range []string{"tunnel", "agent/daemon", "test/bench", "test/lab/link", "go.sum"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Base(path) != "go.sum" && (filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go")) {
				return err
			}
			b, err := os.ReadFile(path)
			fmt.Fprintf(all, "%s %x\n", strings.TrimPrefix(path, root), sha256.Sum256(b))
			return err
		})
		if err != nil {
			return "", fmt.Errorf("hash of the sources: %w", err)
		}
	}
	return hex.EncodeToString(all.Sum(nil))[:16], nil
}
