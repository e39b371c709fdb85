package fair

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Product is the processes of the product under test, each with all its descendants. The
// zero value has none.
type Product struct {
	prefix string // of the names of processes that belong to it as well; empty: none

	mu     sync.Mutex
	pids   map[int]bool
	others int       // threads that wanted to run and were not the product's
	seen   time.Time // when that was
}

// self is the test process.
var self = &Product{pids: map[int]bool{os.Getpid(): true}}

// Self is the product that runs inside the test process, and in processes it starts.
func Self() *Product { return self }

// Named is the product whose processes have names that start with prefix, whoever starts
// them. The kernel keeps 15 bytes of a name.
func Named(prefix string) *Product { return &Product{prefix: prefix} }

// Add adds a process.
func (p *Product) Add(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pids == nil {
		p.pids = map[int]bool{}
	}
	p.pids[pid] = true
}

// Remove takes out a process that has ended: its number may be given to another.
func (p *Product) Remove(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pids, pid)
}

// otherThreads counts the threads that want to run and are not p's, nor the one that
// counts. All clocks of the product share one look.
func (p *Product) otherThreads() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.seen) > every/2 {
		p.others, p.seen = p.countLocked(), now
	}
	return p.others
}

// countLocked counts for otherThreads. When so few threads want to run that they cannot
// slow anybody, their owners are not looked up. What changes while it looks is counted in
// the product's disfavour, except a process that began since the last list of processes.
// Where the machine does not say, there are no others.
func (p *Product) countLocked() int {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := wanting()
	if before <= runtime.NumCPU() {
		return max(before-1, 0)
	}
	own := p.runningLocked(syscall.Gettid())
	return max(min(before, wanting())-1-own, 0)
}

// runningLocked counts the product's threads that run or want to, except one.
func (p *Product) runningLocked(not int) int {
	all := processes()
	n := 0
	for pid, x := range all {
		if p.hasLocked(all, pid) {
			n += runningThreads(pid, x, not)
		}
	}
	return n
}

// hasLocked says whether a process or one of its ancestors is of the product.
func (p *Product) hasLocked(all map[int]process, pid int) bool {
	for range len(all) {
		x, ok := all[pid]
		if !ok {
			return false
		}
		if p.pids[pid] || p.prefix != "" && strings.HasPrefix(x.name, p.prefix) {
			return true
		}
		pid = x.parent
	}
	return false
}

// process is what the kernel says of a process.
type process struct {
	name    string
	parent  int
	threads int
	running bool // the first thread runs or wants to
}

// wanting counts the threads of the machine that run or want to; 0 where it does not say.
func wanting() int {
	fields := bytes.Fields(read("/proc/loadavg", make([]byte, 128)))
	if len(fields) < 4 {
		return 0
	}
	running, _, _ := bytes.Cut(fields[3], []byte("/"))
	n, err := strconv.Atoi(string(running))
	if err != nil {
		return 0
	}
	return n
}

// listed are the processes of the machine at a moment.
var listed struct {
	sync.Mutex // a leaf

	all map[int]process // once here, only read
	at  time.Time
}

// processes lists all processes by their IDs. All products share one list: it takes
// longer than everything else here.
func processes() map[int]process {
	listed.Lock()
	defer listed.Unlock()
	now := time.Now()
	if now.Sub(listed.at) <= every/2 {
		return listed.all
	}
	all := map[int]process{}
	b := make([]byte, 1024)
	for _, pid := range numbers("/proc") {
		name, fields := stat(fmt.Sprintf("/proc/%d/stat", pid), b)
		if len(fields) < 18 {
			continue // it has ended
		}
		x := process{name: string(name), running: fields[0][0] == 'R'}
		x.parent, _ = strconv.Atoi(string(fields[1]))
		x.threads, _ = strconv.Atoi(string(fields[17]))
		all[pid] = x
	}
	listed.all, listed.at = all, now
	return all
}

// runningThreads counts the threads of a process that run or want to, except one.
func runningThreads(pid int, x process, not int) int {
	n := 0
	if x.threads == 1 {
		if x.running {
			n = 1
		}
		return n
	}
	b := make([]byte, 1024)
	for _, tid := range numbers(fmt.Sprintf("/proc/%d/task", pid)) {
		if tid == not {
			continue
		}
		if _, fields := stat(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid), b); len(fields) > 0 && fields[0][0] == 'R' {
			n++
		}
	}
	return n
}

// stat reads a file like /proc/PID/stat into b: the name, and the fields behind it, from the
// state on. There are none when the process has ended.
func stat(file string, b []byte) (name []byte, fields [][]byte) {
	b = read(file, b)
	// The name stands in parentheses and may itself hold some.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return nil, nil
	}
	return b[open+1 : end], bytes.Fields(b[end+1:])
}

// read is what fits into b of a file of /proc, which the kernel gives at one go; nothing on an
// error. os.ReadFile has twice as many system calls.
func read(file string, b []byte) []byte {
	fd, err := syscall.Open(file, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	n, _ := syscall.Read(fd, b)
	return b[:max(n, 0)]
}

// numbers lists the entries of a directory that are numbers.
func numbers(dir string) []int {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var all []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	return all
}
