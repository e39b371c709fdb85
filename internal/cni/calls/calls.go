// Package calls hands the outcome of the plugin's calls to the agent, which counts them. Each call is a process: it appends a
// line to a file in the runtime directory, and the agent takes the file away. A line may be lost, no call is delayed or fails.
package calls

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// File is in the runtime directory.
const File = "cni.calls"

// maxFile bounds the file, in bytes, while nobody takes it away: some thousand calls.
const maxFile = 64 << 10

// What came of a call.
const (
	OK       = "ok"
	TryAgain = "try_again" // the runtime tries again: no subnet yet, a lock is held
	Full     = "full"      // every address is in use
	Overlap  = "overlap"   // another network has the addresses
	Failed   = "error"
)

// Verbs and Results are all that a call can have.
func Verbs() []string   { return []string{"ADD", "DEL", "CHECK", "GC"} }
func Results() []string { return []string{OK, TryAgain, Full, Overlap, Failed} }

// Call is one.
type Call struct {
	Verb   string
	Result string
	Took   time.Duration
}

// Note leaves a call for the agent.
func Note(runtimeDir string, c Call) error {
	if !filepath.IsAbs(runtimeDir) {
		return fmt.Errorf("%s is not an absolute path", runtimeDir)
	}
	f, err := os.OpenFile(filepath.Join(runtimeDir, File), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	if info, serr := f.Stat(); serr == nil && info.Size() < maxFile {
		_, err = fmt.Fprintf(f, "%s %s %d\n", c.Verb, c.Result, c.Took.Microseconds()) // one write: lines do not mix
	}
	return errors.Join(err, f.Close())
}

// Take returns the calls since the last one, and forgets them. It must not run twice at the same time.
func Take(runtimeDir string) ([]Call, error) {
	path := filepath.Join(runtimeDir, File)
	mine := path + ".taken"
	if err := os.Rename(path, mine); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	f, err := os.Open(mine)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 2*maxFile))
	return parse(text), errors.Join(err, os.Remove(mine))
}

// parse reads lines, and skips those that are malformed.
func parse(text []byte) (out []Call) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) != 3 || !slices.Contains(Verbs(), words[0]) || !slices.Contains(Results(), words[1]) {
			continue
		}
		if us, err := strconv.ParseUint(words[2], 10, 40); err == nil {
			out = append(out, Call{words[0], words[1], time.Duration(us) * time.Microsecond})
		}
	}
	return out
}
