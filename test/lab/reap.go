package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	tagPrefix   = "em"
	ownerFile   = "owner" // in the lab's directory: "PID STARTTIME" of the process it belongs to
	keptOwner   = 0       // the owner of a lab that was kept on purpose
	watcherQuit = "quit\n"
)

// startWatcher starts the process that removes the lab when this one dies.
func (l *Lab) startWatcher() error {
	w := exec.Command(l.tool("podtool"), "lab", "watch", l.Dir)
	w.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives a Ctrl-C
	in, err := w.StdinPipe()
	if err != nil {
		return fmt.Errorf("lab watcher: %w", err)
	}
	if err := w.Start(); err != nil {
		return fmt.Errorf("lab watcher (see Build): %w", err)
	}
	l.watcher, l.watched = w, in
	return nil
}

// Watch waits until in ends, which happens when the lab's process closes it or
// dies, and removes the lab then; it returns early when the lab is to stay.
func Watch(dir string, in io.Reader) error {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err == nil && line == watcherQuit {
		return nil
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return remove(dir)
}

// Leftover is a lab found on this machine.
type Leftover struct {
	Tag   string
	Dir   string
	Alive bool // its process still runs
	Kept  bool // left on purpose
}

// Leftovers lists the labs on this machine.
func Leftovers() ([]Leftover, error) {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), tagPrefix+"*", ownerFile))
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var all []Leftover
	for _, f := range dirs {
		dir := filepath.Dir(f)
		b, err := os.ReadFile(f)
		if err != nil {
			continue // removed meanwhile
		}
		lo := Leftover{Tag: filepath.Base(dir), Dir: dir}
		var pid int
		var start string
		if _, err := fmt.Sscan(string(b), &pid, &start); err == nil {
			lo.Kept = pid == keptOwner
			lo.Alive = pid != keptOwner && startTime(pid) == start
		}
		all = append(all, lo)
	}
	return all, nil
}

// Reap removes the lab with the given tag, or, when tag is empty, those whose
// process has died. A lab whose process still runs is refused: it would fail with
// errors that look like faults of the program. It returns the tags of the labs removed.
func Reap(tag string) ([]string, error) {
	all, err := Leftovers()
	if err != nil {
		return nil, err
	}
	var gone []string
	var errs []error
	for _, lo := range all {
		if tag == "" && (lo.Alive || lo.Kept) || tag != "" && lo.Tag != tag {
			continue
		}
		if lo.Alive {
			errs = append(errs, fmt.Errorf("lab %s is in use: end the test or demo that runs it", lo.Tag))
			continue
		}
		if err := remove(lo.Dir); err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, lo.Tag)
	}
	return gone, errors.Join(errs...)
}

// remove kills what runs in the namespaces of the lab in dir and deletes the
// namespaces and the directory.
func remove(dir string) error {
	tag := filepath.Base(dir)
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	var errs []error
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !strings.HasPrefix(fields[0], tag+"-") {
			continue
		}
		if err := removeNS(fields[0]); err != nil {
			errs = append(errs, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		errs = append(errs, fmt.Errorf("remove lab directory: %w", err))
	}
	return errors.Join(errs...)
}

// removeNS kills the processes inside the namespace and deletes it.
func removeNS(name string) error {
	for range 50 {
		out, err := exec.Command("ip", "netns", "pids", name).Output()
		if err != nil || len(strings.TrimSpace(string(out))) == 0 {
			break
		}
		for _, f := range strings.Fields(string(out)) {
			if pid, err := strconv.Atoi(f); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if out, err := exec.Command("ip", "netns", "delete", name).CombinedOutput(); err != nil {
		return fmt.Errorf("delete namespace %s: %w: %s", name, err, out)
	}
	return nil
}

// writeOwner notes in dir which process the lab belongs to, in one step: a half
// written owner would be taken for a dead one by another run.
func writeOwner(dir string, pid int) error {
	line := fmt.Sprintf("%d %s\n", pid, startTime(pid))
	file := filepath.Join(dir, ownerFile)
	if err := os.WriteFile(file+".new", []byte(line), 0o644); err != nil {
		return fmt.Errorf("lab owner: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("lab owner: %w", err)
	}
	return nil
}

// startTime returns when the process started, in ticks since boot (field 22 of
// /proc/PID/stat), so that a reused PID is not taken for the owner; "-" when
// there is no such process.
func startTime(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "-"
	}
	// The second field is the command in parentheses and may hold spaces.
	_, rest, ok := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return "-"
	}
	return fields[19]
}
