package nstest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
)

const child = "NSTEST_CHILD"

// TestKilled: a test that is killed leaves no namespace behind.
func TestKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if os.Getenv(child) != "" {
		if _, err := os.Stdout.WriteString("path " + New(t).Path() + "\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // sleep: it is killed meanwhile
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	c.Env = append(os.Environ(), child+"=1")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 256)
	n, err := out.Read(b)
	_ = c.Process.Kill()
	_ = c.Wait()
	_, path, ok := strings.Cut(strings.TrimSpace(string(b[:n])), "path ")
	if !ok {
		t.Fatalf("the child says %q: %v", b[:n], err)
	}
	fair.Eventually(t, 10*time.Second, path+" is removed", fair.True(func() bool {
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	}))
}
