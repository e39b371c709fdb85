package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"edgemesh/test/bench/report"
)

// machine says what this runs on, and which programs are compared.
func (b *bench) machine(ctx context.Context) (report.Machine, error) {
	m := report.Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Versions: map[string]string{}}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, fmt.Errorf("machine: %w", err)
	}
	m.Kernel = strings.TrimSpace(string(kernel))
	if m.CPU, err = fieldOf("/proc/cpuinfo", "model name"); err != nil {
		m.CPU = runtime.GOARCH // as on many ARM boards
	}
	memory, err := fieldOf("/proc/meminfo", "MemTotal")
	if err != nil {
		return m, err
	}
	kb, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(memory, "kB")))
	if err != nil {
		return m, fmt.Errorf("machine: memory: %w", err)
	}
	m.MemoryMB = kb * 1024 / 1e6
	for _, program := range []string{report.Reference, "nebula"} {
		info, err := buildinfo.ReadFile(filepath.Join(b.bin, program))
		if err != nil {
			return m, fmt.Errorf("%s: run test/bench/build.sh first: %w", program, err)
		}
		m.Versions[program] = info.Main.Version
	}
	m.Versions["edgemesh"] = firstLine(ctx, b.root, "git", "describe", "--tags", "--always", "--dirty")
	if m.Release, err = fieldOf(filepath.Join(b.root, "manifests/edgemesh/Chart.yaml"), "version"); err != nil {
		return m, err
	}
	m.Versions["iperf3"] = "unknown"
	if words := strings.Fields(firstLine(ctx, b.root, "iperf3", "--version")); len(words) > 1 {
		m.Versions["iperf3"] = words[1] // "iperf 3.18 (cJSON 1.7.15)"
	}
	return m, nil
}

// fieldOf returns the first value of a key in a file of lines "key : value".
func fieldOf(path, key string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("machine: %w", err)
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("machine: %s has no %q", path, key)
}

// firstLine is the first line of a program's output, "unknown" when it fails:
// there may be no git where the sources came as an archive.
func firstLine(ctx context.Context, dir, name string, args ...string) string {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	line, _, _ := strings.Cut(string(out), "\n")
	if err != nil || line == "" {
		return "unknown"
	}
	return strings.TrimSpace(line)
}
