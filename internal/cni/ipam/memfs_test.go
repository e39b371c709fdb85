package ipam

import (
	"io/fs"
	"slices"
	"syscall"
	"time"
)

// memFS is a directory in memory that knows what a power cut would leave of it.
type memFS struct {
	names map[string]*memFile // as processes see it
	disk  map[string]*memFile // names that are on the disk for sure
	log   []dirOp             // changes of names since the last SyncDir

	clock func() time.Time
	dieAt int // 1: the next operation does not happen and panics; 0: never
	full  bool
}

type memFile struct {
	content []byte
	synced  bool // the content is on the disk
	written time.Time
}

// dirOp sets name to file, or removes it where file is nil. from is a further
// name that goes with it.
type dirOp struct {
	name string
	file *memFile
	from string
}

// errKilled is what an operation panics with at dieAt.
type errKilled struct{}

var _ FS = (*memFS)(nil)

func newMemFS() *memFS {
	return &memFS{names: map[string]*memFile{}, disk: map[string]*memFile{}, clock: time.Now}
}

func (m *memFS) step() {
	if m.dieAt == 1 {
		m.dieAt = 0
		panic(errKilled{})
	}
	if m.dieAt > 1 {
		m.dieAt--
	}
}

func (m *memFS) apply(op dirOp) {
	set(m.names, op)
	m.log = append(m.log, op)
}

func set(names map[string]*memFile, op dirOp) {
	if op.file == nil {
		delete(names, op.name)
	} else {
		names[op.name] = op.file
	}
	if op.from != "" {
		delete(names, op.from)
	}
}

// put writes a file that belongs to another program and is on the disk.
func (m *memFS) put(name, content string) {
	f := &memFile{content: []byte(content), synced: true, written: m.clock()}
	m.names[name], m.disk[name] = f, f
}

func (m *memFS) ReadDir() ([]string, error) {
	var out []string
	for name := range m.names {
		out = append(out, name)
	}
	return out, nil
}

func (m *memFS) ReadFile(name string) ([]byte, time.Time, error) {
	f, ok := m.names[name]
	if !ok {
		return nil, time.Time{}, fs.ErrNotExist
	}
	return slices.Clone(f.content), f.written, nil
}

func (m *memFS) WriteSync(name string, content []byte) error {
	m.step()
	f := &memFile{written: m.clock()}
	m.apply(dirOp{name: name, file: f})
	if m.full {
		return syscall.ENOSPC
	}
	m.step()
	f.content = slices.Clone(content[:len(content)/2])
	m.step()
	f.content = slices.Clone(content)
	m.step()
	f.synced = true
	return nil
}

func (m *memFS) Rename(from, to string) error {
	m.step()
	f, ok := m.names[from]
	if !ok {
		return fs.ErrNotExist
	}
	m.apply(dirOp{name: to, file: f, from: from})
	return nil
}

func (m *memFS) Remove(name string) error {
	m.step()
	if _, ok := m.names[name]; !ok {
		return fs.ErrNotExist
	}
	m.apply(dirOp{name: name})
	return nil
}

func (m *memFS) SyncDir() error {
	m.step()
	for _, op := range m.log {
		set(m.disk, op)
	}
	m.log = nil
	return nil
}

// powerCut leaves what was synced, and of the rest what pick says: names
// changed since the last SyncDir survive or not, each for itself, and contents
// that were not synced are whole, cut or empty. pick returns a number in [0, n).
func (m *memFS) powerCut(pick func(n int) int) {
	for _, op := range m.log {
		if pick(2) == 0 {
			set(m.disk, op)
		}
	}
	m.names, m.log = map[string]*memFile{}, nil
	for name, f := range m.disk {
		if !f.synced {
			switch pick(3) {
			case 0:
				f.content = nil
			case 1:
				f.content = f.content[:pick(len(f.content)+1)]
			}
			f.synced = true
		}
		m.names[name] = f
	}
}
