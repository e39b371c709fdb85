package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
)

// errNoMirror means that this machine's apt has no Debian mirror, as on Ubuntu.
var errNoMirror = errors.New("apt's sources on this machine name no Debian mirror: set --mirror")

// aptMirror finds the Debian mirror that this machine's apt uses: root is the
// directory with sources.list and sources.list.d; the result has /debian below it.
func aptMirror(root string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, "sources.list.d", "*"))
	if err != nil {
		return "", err
	}
	line := regexp.MustCompile(`(?m)^(?:URIs:|deb\s(?:\[[^]]*\]\s)?)\s*(https?://\S+?)/debian/?(?:\s|$)`)
	for _, f := range append([]string{filepath.Join(root, "sources.list")}, files...) {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // one of several places
		}
		if m := line.FindSubmatch(data); m != nil {
			return string(m[1]), nil
		}
	}
	return "", errNoMirror
}
