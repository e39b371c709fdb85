package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edgemesh/internal/config/strict"
	"edgemesh/internal/durable"
	"edgemesh/internal/membership/mesh"
)

// change is what one Save changed. In the file it is a line: the SHA-256, in hex, of the one before it (of the first: of
// the membership in File) together with the JSON that follows. So a change counts only after those that it was made on,
// and none on another whole.
type change struct {
	Nodes mesh.Change
}

// removes reports whether a key that was a member's is nobody's now.
func (c change) removes() bool {
	stays := make(map[mesh.PeerID]bool, len(c.Nodes.Come))
	for i := range c.Nodes.Come {
		stays[c.Nodes.Come[i].PeerID] = true
	}
	return slices.ContainsFunc(c.Nodes.Gone, func(n mesh.Node) bool { return !stays[n.PeerID] })
}

// record is the JSON.
type record struct {
	Gone []string    `json:"gone,omitempty"` // names
	Come []mesh.Node `json:"come,omitempty"`
}

// encode is the line, and its digest.
func (c change) encode(after digest) (line []byte, sum digest, err error) {
	r := record{Come: c.Nodes.Come}
	for _, n := range c.Nodes.Gone {
		r.Gone = append(r.Gone, n.Name)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, sum, err
	}
	sum = chained(after, data)
	return slices.Concat([]byte(hex.EncodeToString(sum[:])+" "), data, []byte("\n")), sum, nil
}

func chained(after digest, data []byte) digest { return sha256.Sum256(append(after[:], data...)) }

// add appends a line to a file of that size; one of size 0 is created again. It reads the line back.
func add(path string, line []byte, size int64) (err error) {
	flags := os.O_RDWR
	if size == 0 {
		flags |= os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if fi, err := f.Stat(); err != nil || fi.Size() != size {
		return errors.Join(fmt.Errorf("%s: it has another size than it was left with", path), err)
	}
	if _, err := f.WriteAt(line, size); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	back := make([]byte, len(line))
	if _, err := f.ReadAt(back, size); err != nil || !bytes.Equal(back, line) {
		return errors.Join(fmt.Errorf("%s: read back differs from what was written", path), err)
	}
	if size == 0 {
		return durable.SyncDir(filepath.Dir(path))
	}
	return nil
}

// replay makes the changes in path to s, whose digest is given, as far as they are whole and of s. It fails where one is
// whole and makes no sense.
func replay(path string, s mesh.State, sum digest) (mesh.State, error) {
	f, err := strict.Open(path, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer f.Close()
	var at map[string]int // of nodes, by name
	gone := map[int]bool{}
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return s, err
		}
		data, ok := check(line, &sum)
		if !ok {
			break
		}
		var x record
		if err := json.Unmarshal(data, &x); err != nil {
			return s, err
		}
		if at == nil {
			at = make(map[string]int, len(s.Nodes))
			for i := range s.Nodes {
				at[s.Nodes[i].Name] = i
			}
		}
		for _, name := range x.Gone {
			i, ok := at[name]
			if !ok {
				return s, fmt.Errorf("a change removes %q, which is not there", name)
			}
			gone[i] = true
			delete(at, name)
		}
		for _, n := range x.Come {
			if _, dup := at[n.Name]; dup {
				return s, fmt.Errorf("a change adds %q, which is there", n.Name)
			}
			at[n.Name] = len(s.Nodes)
			s.Nodes = append(s.Nodes, n)
		}
	}
	if at == nil {
		return s, nil
	}
	left := s.Nodes[:0]
	for i, n := range s.Nodes {
		if !gone[i] {
			left = append(left, n)
		}
	}
	clear(s.Nodes[len(left):])
	s.Nodes = left
	slices.SortFunc(s.Nodes, func(a, b mesh.Node) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// check returns the JSON of a line that continues what has the digest sum, which it brings up to date.
func check(line []byte, sum *digest) (data []byte, ok bool) {
	text, data, ok := bytes.Cut(line, []byte(" "))
	data, end := bytes.CutSuffix(data, []byte("\n"))
	if !ok || !end {
		return nil, false
	}
	next := chained(*sum, data)
	if hex.EncodeToString(next[:]) != string(text) {
		return nil, false
	}
	*sum = next
	return data, true
}
