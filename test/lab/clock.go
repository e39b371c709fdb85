package lab

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"edgemesh/test/repo"
)

// clockEnv names, in the environment of a program built by buildWithClock, the file
// that its clock follows.
const clockEnv = "EDGEMESH_TEST_CLOCK"

// The wall clock cannot be set for one network namespace, and nobody else's may be
// touched. So a program is built with a standard library whose time.Now adds what a
// mapped file says: wall times jump, timers and monotonic times continue, as they do
// when a host's clock is set.
const clockSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var clockStep = mapClock()

func mapClock() *int64 {
	path, ok := syscall.Getenv("` + clockEnv + `")
	if !ok {
		return new(int64)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		panic("` + clockEnv + `: " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("` + clockEnv + `: " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&b[0]))
}

func stepped() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = runtimeNow()
	return sec + atomic.LoadInt64(clockStep), nsec, mono
}
`

// OwnClock has the node's next agent run with a clock of its own, which is right until
// Set makes it jump. The first time, all of the agent is compiled again.
func (n *Node) OwnClock() (c Clock, err error) {
	n.Programs, c, err = n.ownClock(n.Dir, "agent")
	return c, err
}

// OwnClock is Node.OwnClock for a relay.
func (r *Relay) OwnClock() (c Clock, err error) {
	r.Programs, c, err = r.ownClock(filepath.Dir(r.StateDir), "relay")
	return c, err
}

func (n *NS) ownClock(parent, program string) (dir string, c Clock, err error) {
	dir = filepath.Join(parent, "clock")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", c, fmt.Errorf("%s: %w", n.Name, err)
	}
	if err := buildWithClock(dir, program); err != nil {
		return "", c, fmt.Errorf("%s: %w", n.Name, err)
	}
	c = Clock{filepath.Join(dir, "step")}
	n.env = append(n.env, clockEnv+"="+c.path)
	return dir, c, c.Set(0)
}

// buildWithClock builds a program whose clock follows clockEnv into directory dir.
func buildWithClock(dir, program string) error {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	src := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time")
	b, err := os.ReadFile(filepath.Join(src, "time.go"))
	if err != nil {
		return fmt.Errorf("read the standard library: %w", err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	patched := strings.Replace(string(b), now, strings.Replace(now, "runtimeNow", "stepped", 1), 1)
	if patched == string(b) {
		return fmt.Errorf("%s: time.Now is not as it was in Go 1.26", src)
	}
	replace := map[string]string{}
	for name, text := range map[string]string{"time.go": patched, "zz_step.go": clockSource} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the patched library: %w", err)
		}
		replace[filepath.Join(src, name)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return fmt.Errorf("write the overlay: %w", err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return fmt.Errorf("write the overlay: %w", err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-overlay", file, "-o", filepath.Join(dir, "edgemesh-"+program),
		"./"+program)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build with a clock of its own: %w\n%s", err, out)
	}
	return nil
}

// Clock is a program's wall clock.
type Clock struct{ path string }

// Set lets the clock jump to ahead of this machine's, immediately; negative is behind.
func (c Clock) Set(ahead time.Duration) error {
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	// The size stays what it is: the file is mapped.
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second))), 0)
	if err := f.Close(); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	if err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	return nil
}
