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

	"github.com/libp2p/go-libp2p/core/peer"

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

// fingerprint is what HardwareFile holds. Of another key it counts for nothing.
type fingerprint struct {
	Peer   peer.ID `json:"peer"`
	Made   Traits  `json:"made"`             // where the key was made
	Second *Traits `json:"second,omitempty"` // the machine that stood by for another one last: a copy of this file is not that
}

// Machine is what is known of the machine that a node runs on.
type Machine struct {
	Matches bool         // its hardware is that on which the key was made
	Second  bool         // it once stood by for another one whose hardware said no more than its own
	Yielded func() error // remembers that it does; nil: nothing does
}

// Compare reports whether the hardware of the machine below root matches the fingerprint of key id in dir; known: there is something
// to compare on either side.
func Compare(dir, root string, id peer.ID) (matches, known bool) {
	f, _ := load(dir, id)
	now := Hardware(root)
	return f.Made.Matches(now), len(f.Made) > 0 && len(now) > 0
}

// load reads the fingerprint of key id: empty where there is none, or one that a power cut tore.
func load(dir string, id peer.ID) (f fingerprint, err error) {
	b, err := os.ReadFile(filepath.Join(dir, HardwareFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, fmt.Errorf("read the hardware's fingerprint: %w", err)
	}
	if json.Unmarshal(b, &f) != nil || f.Peer != id {
		return fingerprint{Peer: id}, nil
	}
	return f, nil
}

func (f fingerprint) save(dir string) error {
	b, err := json.Marshal(f)
	if err == nil {
		err = durable.WriteFile(filepath.Join(dir, HardwareFile), append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the hardware's fingerprint: %w", err)
	}
	return nil
}

// Remember compares, and writes the fingerprint of key id where there is none that can be read. Where the hardware matches, the
// fingerprint follows what changed.
func Remember(dir, root string, id peer.ID) (m Machine, err error) {
	now := Hardware(root)
	m.Yielded = func() error {
		f, err := load(dir, id)
		if err != nil {
			return err
		}
		f.Second = &now
		return f.save(dir)
	}
	f, err := load(dir, id)
	if err != nil {
		return m, err
	}
	m.Second = f.Second != nil && (f.Second.Matches(now) || len(*f.Second)+len(now) == 0)
	if len(f.Made) > 0 && !f.Made.Matches(now) {
		return m, nil
	}
	was := f.Made
	if f.Made = maps.Clone(was); f.Made == nil {
		f.Made = Traits{}
	}
	maps.Copy(f.Made, now)
	m.Matches = f.Made.Matches(now)
	if maps.EqualFunc(f.Made, was, slices.Equal) {
		return m, nil
	}
	return m, f.save(dir)
}
