// Package nstest gives a test a network namespace of its own and runs commands in it.
// Only tests import it.
package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace is a file descriptor of a network namespace.
type Namespace int

// New makes a namespace and moves the calling thread into it.
func New() (Namespace, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, err
	}
	return here()
}

// here is the thread's namespace.
func here() (Namespace, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return Namespace(fd), err
}

// Set moves the calling thread into n.
func (n Namespace) Set() error { return unix.Setns(int(n), unix.CLONE_NEWNET) }

// Close closes the descriptor.
func (n Namespace) Close() error { return unix.Close(int(n)) }

// Outside reports whether the thread is in the network namespace the tests were started in.
// No command of a test may run there.
func Outside(t testing.TB) bool {
	t.Helper()
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	// No test moves its parent process, or that of the tests.
	there, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", os.Getppid()))
	if err != nil {
		t.Fatal(err)
	}
	return here == there
}

// Enter puts the test into a network namespace of its own, in which lo is up.
// It has no name and goes with the last thread or handle that holds it.
// Subtests run on other threads: each has to enter one of its own.
func Enter(t testing.TB) Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root")
	}
	runtime.LockOSThread()
	before, err := here()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := before.Set(); err != nil {
			t.Fatal(err) // the thread stays locked and dies with the test
		}
		before.Close()
		ns.Close()
		runtime.UnlockOSThread()
	})
	Prepare(t)
	return ns
}

// Prepare sets lo up in the thread's namespace, and has addresses valid immediately: those that
// become valid later would make dumps differ.
func Prepare(t testing.TB) {
	t.Helper()
	Run(t, "ip link set lo up")
	for _, which := range []string{"all", "default"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/accept_dad", []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// locking are the programs that fail while another one of them runs, in whatever namespace.
var locking = regexp.MustCompile(`^ip6?tables(-legacy|-nft)?$`) //nolint:gochecknoglobals // a constant

// Run executes commands, one a line, in the thread's namespace, and returns what they print.
func Run(t testing.TB, commands string) string {
	t.Helper()
	if Outside(t) {
		t.Fatal("a command would run in the host's own network namespace; subtests have a thread of their own")
	}
	var all strings.Builder
	for line := range strings.Lines(commands) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if locking.MatchString(f[0]) {
			f = slices.Insert(f, 1, "-w") // a test beside this one may hold the lock of all namespaces
		}
		out, err := exec.Command(f[0], f[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.TrimSpace(line), err, out)
		}
		all.Write(out)
	}
	return all.String()
}
