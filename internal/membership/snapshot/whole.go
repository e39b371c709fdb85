package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"edgemesh/internal/config/strict"
	"edgemesh/internal/membership/mesh"
)

// envelope is the file: the membership's JSON and the SHA-256 of exactly those bytes, in hex. It is written with a node a
// line, so that neither writer nor reader has all of it in memory; any other form with the same meaning is read, too.
type envelope struct {
	Version int             `json:"version"`
	SHA256  string          `json:"sha256"`
	State   json.RawMessage `json:"state"`
}

// What is around the membership in the file, and around its nodes in the membership.
var (
	opening = fmt.Sprintf(`{"version":%d,"state":`, Version) //nolint:gochecknoglobals // a constant
	nodes   = []byte(`,"nodes":[` + "\n")                    //nolint:gochecknoglobals // a constant
)

const (
	sumOpening = `,"sha256":"`
	closing    = "\"}\n"
)

// whole writes a membership.
type whole struct{ state mesh.State }

// writeState writes the membership's JSON.
func (w whole) writeState(to io.Writer) error {
	head, err := json.Marshal(settings(w.state))
	if err != nil || len(w.state.Nodes) == 0 {
		return errors.Join(err, put(to, head))
	}
	if err := put(to, head[:len(head)-1], nodes); err != nil {
		return err
	}
	for i := range w.state.Nodes {
		line, err := json.Marshal(&w.state.Nodes[i])
		if err != nil {
			return err
		}
		end := ",\n"
		if i == len(w.state.Nodes)-1 {
			end = "\n]}"
		}
		if err := put(to, line, []byte(end)); err != nil {
			return err
		}
	}
	return nil
}

func put(to io.Writer, all ...[]byte) error {
	for _, b := range all {
		if _, err := to.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// counter counts bytes.
type counter struct {
	hash.Hash
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return c.Hash.Write(b)
}

// digest is that of the membership's JSON, and the size of the file that write writes.
func (w whole) digest() (sum digest, size int64, err error) {
	c := &counter{Hash: sha256.New()}
	err = w.writeState(c)
	c.Sum(sum[:0])
	return sum, c.n + int64(len(opening)+len(sumOpening)+2*len(sum)+len(closing)), err
}

// write writes the file.
func (w whole) write(to io.Writer) error {
	buf, sum := bufio.NewWriterSize(to, 64<<10), sha256.New()
	if err := put(buf, []byte(opening)); err != nil {
		return err
	}
	if err := w.writeState(io.MultiWriter(buf, sum)); err != nil {
		return err
	}
	if err := put(buf, []byte(sumOpening), []byte(hex.EncodeToString(sum.Sum(nil))), []byte(closing)); err != nil {
		return err
	}
	return buf.Flush()
}

// isIn reports whether the file at path is what write would write.
func (w whole) isIn(path string, want digest, size int64) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || fi.Size() != size {
		return false
	}
	head := make([]byte, len(opening))
	if _, err := io.ReadFull(f, head); err != nil || string(head) != opening {
		return false
	}
	end := []byte(sumOpening + hex.EncodeToString(want[:]) + closing)
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, size-int64(len(head)+len(end))); err != nil || !bytes.Equal(sum.Sum(nil), want[:]) {
		return false
	}
	rest, err := io.ReadAll(f)
	return err == nil && bytes.Equal(rest, end)
}

// readWhole reads File, and what its changes continue.
func readWhole(path string) (mesh.State, digest, error) {
	f, err := strict.Open(path, maxSize)
	if err != nil {
		return mesh.State{}, digest{}, fmt.Errorf("load snapshot: %w", err)
	}
	defer f.Close()
	s, sum, err := decodeLines(bufio.NewReaderSize(f, 64<<10))
	if errors.Is(err, errOtherForm) {
		var data []byte
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			data, err = io.ReadAll(f)
		}
		if err != nil {
			return mesh.State{}, digest{}, fmt.Errorf("load snapshot: %w", err)
		}
		s, sum, err = decode(data)
	}
	if err != nil {
		return mesh.State{}, digest{}, torn(path, err)
	}
	return s, sum, nil
}

// errOtherForm means that a file may be a snapshot that another version wrote.
var errOtherForm = errors.New("not a node a line")

// decodeLines reads what write writes.
func decodeLines(r *bufio.Reader) (s mesh.State, sum digest, err error) {
	h := sha256.New()
	line, err := r.ReadBytes('\n')
	head, ours := bytes.CutPrefix(line, []byte(opening))
	if err != nil || !ours || !bytes.HasSuffix(head, nodes) {
		return s, sum, errOtherForm
	}
	h.Write(head)
	if err := json.Unmarshal(append(bytes.TrimSuffix(head, nodes), '}'), &s); err != nil {
		return s, sum, errOtherForm
	}
	for {
		if line, err = r.ReadBytes('\n'); err != nil {
			return s, sum, errors.New("cut short")
		}
		if bytes.HasPrefix(line, []byte("]}")) {
			break
		}
		h.Write(line)
		var n mesh.Node
		if err := json.Unmarshal(bytes.TrimSuffix(line, []byte(",\n")), &n); err != nil {
			return s, sum, err
		}
		s.Nodes = append(s.Nodes, n)
	}
	h.Write([]byte("]}"))
	h.Sum(sum[:0])
	if string(line) != "]}"+sumOpening+hex.EncodeToString(sum[:])+closing {
		return s, sum, errors.New("checksum does not match")
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		return s, sum, errors.New("something follows it")
	}
	return s, sum, nil
}

// decode reads any form of the file.
func decode(data []byte) (s mesh.State, sum digest, err error) {
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return s, sum, err
	}
	if e.Version != Version {
		return s, sum, fmt.Errorf("version %d, want %d", e.Version, Version)
	}
	if sum = sha256.Sum256(e.State); hex.EncodeToString(sum[:]) != e.SHA256 {
		return s, sum, errors.New("checksum does not match")
	}
	return s, sum, json.Unmarshal(e.State, &s)
}
