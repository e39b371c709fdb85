package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/repo"
)

// Options say how a lab is made. The zero value is good for tests.
type Options struct {
	// Bin is the directory of edgemesh-agent, edgemesh-relay, edgemesh-cni and
	// podtool; empty means bin/ of the repository.
	Bin string
	// ClusterCIDRs are the cluster's pod ranges; empty means DefaultRange4
	// and DefaultRange6.
	ClusterCIDRs []string
	// Product gets the processes of our programs that run in the lab; nil means one of
	// the lab's own.
	Product *fair.Product
}

const (
	// DefaultRange4 and DefaultRange6 are the cluster's ranges. Node number n
	// owns the nth /24 and the nth /64 of them.
	DefaultRange4 = "10.244.0.0/16"
	DefaultRange6 = "fd44:44::/48"
)

// Lab is one small internet. Its methods may not be called concurrently, except
// those of processes, pods and nodes that already exist.
type Lab struct {
	Tag     string // prefix of all namespaces
	Dir     string // holds all files of the lab
	WAN     *NS    // the internet: the bridge all routers hang on, and 5.5.0.1
	Cluster Cluster
	Relays  []*Relay
	Sites   []*Site
	Clouds  []*Node
	Product *fair.Product // our programs: their load never slows its clocks

	bin     string
	watcher *exec.Cmd
	watched io.WriteCloser // its closing makes the watcher clean up
	ports   int            // bridge ports made so far, for their names
	cuts    int            // calls of Cut, likewise
	links   int            // calls of InsertLink, likewise

	mu        sync.Mutex
	processes []*Process
}

// New makes an empty lab with its WAN. The error is ErrNotRoot or
// ErrMissingTool, or says which step failed; nothing is left behind then.
func New(o Options) (_ *Lab, err error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if err := checkTools(); err != nil {
		return nil, err
	}
	if o.Bin == "" {
		root, err := repo.Root()
		if err != nil {
			return nil, err
		}
		o.Bin = filepath.Join(root, "bin")
	}
	tag := newTag()
	l := &Lab{Tag: tag, Dir: filepath.Join(os.TempDir(), tag), Product: cmp.Or(o.Product, &fair.Product{}), bin: o.Bin}
	l.Cluster.PodCIDRs = o.ClusterCIDRs
	if len(l.Cluster.PodCIDRs) == 0 {
		l.Cluster.PodCIDRs = []string{DefaultRange4, DefaultRange6}
	}
	if err := os.Mkdir(l.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if err := writeOwner(l.Dir, os.Getpid()); err != nil {
		return nil, err
	}
	if err := l.startWatcher(); err != nil {
		return nil, err
	}
	if err := l.makeWAN(); err != nil {
		return nil, fmt.Errorf("wan: %w", err)
	}
	return l, nil
}

// newTag returns a name that no other run has: "em" and six letters.
func newTag() string {
	const letters = "abcdefghijkmnpqrstuvwxyz23456789" // 32 of them
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	for i := range b {
		b[i] = letters[b[i]%32]
	}
	return tagPrefix + string(b[:])
}

// Close ends all processes and removes the namespaces and files.
func (l *Lab) Close() error {
	l.mu.Lock()
	ps := l.processes
	l.processes = nil
	l.mu.Unlock()
	for _, p := range ps {
		p.signalTerm()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, p := range ps {
		if p.Wait(ctx) != nil {
			p.Kill()
		}
	}
	err := remove(l.Dir)
	if l.watched != nil {
		_ = l.watched.Close()
		_ = l.watcher.Wait() // finds nothing left to do
	}
	return err
}

// Keep lets the lab outlive this process: Close must no longer be called, and
// Reap with its tag removes it.
func (l *Lab) Keep() error {
	if err := writeOwner(l.Dir, keptOwner); err != nil {
		return err
	}
	if _, err := io.WriteString(l.watched, watcherQuit); err != nil {
		return fmt.Errorf("keep lab: %w", err)
	}
	return l.watcher.Wait()
}

// Logs returns the last lines of the log of every agent, relay and tool that was
// started, for the output of a failed test.
func (l *Lab) Logs(lines int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var s string
	last := map[string]*Process{} // of each log, which restarts share
	for _, p := range l.processes {
		last[p.Log] = p
	}
	for _, p := range l.processes {
		if last[p.Log] != p {
			continue
		}
		s += fmt.Sprintf("---- %s (%s)\n%s\n", p.Name, p.state(), p.Tail(lines))
	}
	return s
}

// Warnings returns what agents and relays have logged that is worse than an information. In a healthy run that is nothing.
func (l *Lab) Warnings() (all []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]bool{} // logs, which restarts share
	for _, p := range l.processes {
		if seen[p.Log] || !isProduct(p.cmd.Args) {
			continue
		}
		seen[p.Log] = true
		text, err := os.ReadFile(p.Log)
		if err != nil {
			return nil, fmt.Errorf("log of %s: %w", p.Name, err)
		}
		for line := range strings.Lines(string(text)) {
			if !calm.MatchString(line) {
				all = append(all, p.Name+": "+strings.TrimSpace(line))
			}
		}
	}
	return all, nil
}

// calm is a record of a program's log that nobody needs to act on, or one of the addresses that a relay prints. A panic is not.
var calm = regexp.MustCompile(`^(time=\S+ level=(DEBUG|INFO) |/ip[46]/)`) //nolint:gochecknoglobals // a constant

// Nodes returns all nodes, those of the sites first.
func (l *Lab) Nodes() []*Node {
	var all []*Node
	for _, s := range l.Sites {
		all = append(all, s.Nodes...)
	}
	return append(all, l.Clouds...)
}

// portName returns a name for the bridge's end of a new wire.
func (l *Lab) portName() string {
	l.ports++
	return fmt.Sprintf("p%d", l.ports)
}
