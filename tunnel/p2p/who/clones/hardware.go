package clones

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edgemesh/internal/durable"
)

// HardwareFile is the name of the fingerprint, beside the key.
const HardwareFile = "identity.hardware"

// Traits are what can be known of a machine's hardware, hashed, by kind: "board", "nic", "disk".
type Traits map[string][]string

// sources are the files of each kind, below the host's root.
var sources = map[string][]string{ //nolint:gochecknoglobals // a constant
	"board": {
		"sys/class/dmi/id/product_uuid", "sys/class/dmi/id/product_serial", "sys/class/dmi/id/board_serial",
		"sys/firmware/devicetree/base/serial-number",
	},
	"nic":  {"sys/class/net/*/address"},
	"disk": {"sys/block/*/serial", "sys/block/*/device/serial", "sys/block/*/device/cid", "sys/block/*/device/wwid"},
}

// fillers are what firmware has in place of serial numbers, in lower case.
var fillers = []string{ //nolint:gochecknoglobals // a constant
	"", "none", "default string", "to be filled by o.e.m.", "system serial number", "base board serial number", "not specified",
	"0123456789", "123456789", "03000200-0400-0500-0006-000700080009",
}

// Hardware reads the traits of the machine whose root directory is root.
func Hardware(root string) Traits {
	out := Traits{}
	add := func(kind, value string) {
		sum := sha256.Sum256([]byte("edgemesh " + kind + " " + value))
		if h := hex.EncodeToString(sum[:8]); !slices.Contains(out[kind], h) {
			out[kind] = append(out[kind], h)
		}
	}
	var board []string
	for kind, patterns := range sources {
		for _, pattern := range patterns {
			files, _ := filepath.Glob(filepath.Join(root, pattern))
			for _, f := range files {
				v := read(f)
				switch {
				case slices.Contains(fillers, v) || strings.Trim(v, "0-:f") == "":
				case kind == "board":
					board = append(board, v)
				case kind != "nic" || own(filepath.Dir(f)):
					add(kind, v)
				}
			}
		}
	}
	if len(board) > 0 {
		add("board", strings.Join(board, "\n")) // as a whole: boards of one make share some
	}
	for _, t := range out {
		slices.Sort(t)
	}
	return out
}

func read(file string) string {
	b, _ := os.ReadFile(file)
	return strings.ToLower(strings.Trim(string(b), " \t\r\n\x00"))
}

// own reports whether a link is of a device, and its address the device's own.
func own(link string) bool {
	_, err := os.Stat(filepath.Join(link, "device"))
	return err == nil && read(filepath.Join(link, "addr_assign_type")) == "0"
}

// Matches reports whether now is the machine of t: more kinds agree than disagree.
func (t Traits) Matches(now Traits) bool {
	agree := 0
	for kind, was := range t {
		is := now[kind]
		switch {
		case len(is) == 0:
		case slices.ContainsFunc(is, func(x string) bool { return slices.Contains(was, x) }):
			agree++
		default:
			agree--
		}
	}
	return agree > 0
}

// Compare reports whether the hardware of the machine below root matches the fingerprint of the key in dir; known: there is something
// to compare on either side.
func Compare(dir, root string) (matches, known bool) {
	t, _ := load(dir)
	now := Hardware(root)
	return t.Matches(now), len(t) > 0 && len(now) > 0
}

// load reads the fingerprint: nil where there is none, or one that a power cut tore.
func load(dir string) (t Traits, err error) {
	b, err := os.ReadFile(filepath.Join(dir, HardwareFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the hardware's fingerprint: %w", err)
	}
	if json.Unmarshal(b, &t) != nil {
		return nil, nil
	}
	return t, nil
}

// Remember reports what Compare does, and writes the fingerprint where there is none that can be read. Where the hardware matches, the
// fingerprint follows what changed.
func Remember(dir, root string) (matches bool, err error) {
	now := Hardware(root)
	was, err := load(dir)
	switch {
	case err == nil && !was.Matches(now) && len(was) > 0:
		return false, nil
	case err != nil:
		return false, err
	}
	next := maps.Clone(was)
	if next == nil {
		next = Traits{}
	}
	maps.Copy(next, now)
	matches = next.Matches(now)
	if maps.EqualFunc(next, was, slices.Equal) {
		return matches, nil
	}
	b, err := json.Marshal(next)
	if err == nil {
		err = durable.WriteFile(filepath.Join(dir, HardwareFile), append(b, '\n'), 0o600)
	}
	if err != nil {
		err = fmt.Errorf("write the hardware's fingerprint: %w", err)
	}
	return matches, err
}
