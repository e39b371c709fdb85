package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"edgemesh/test/lab"
)

// ticks is USER_HZ, the unit of CPU times in /proc: 100 on all Linux.
const ticks = 100

// cpu is CPU time used, in seconds: by a carrier's own processes, user and system,
// and by all that was not idle, interrupts included, whoever did it.
type cpu struct{ tunnel, machine float64 }

func (c *carrier) readCPU() (u cpu, err error) {
	for _, p := range c.tunnel {
		t, err := processCPU(p.PID())
		if err != nil {
			return u, err
		}
		u.tunnel += t
	}
	u.machine, err = machineCPU()
	return u, err
}

// costOf returns the CPU time used during f.
func (c *carrier) costOf(f func() (flow, error)) (cpu, flow, error) {
	before, err := c.readCPU()
	if err != nil {
		return cpu{}, flow{}, err
	}
	r, err := f()
	if err != nil {
		return cpu{}, r, err
	}
	after, err := c.readCPU()
	return cpu{after.tunnel - before.tunnel, after.machine - before.machine}, r, err
}

// processCPU reads utime and stime of /proc/PID/stat, see proc_pid_stat(5).
func processCPU(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("cpu time: %w", err)
	}
	// The second field, the name in parentheses, may hold spaces.
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0, fmt.Errorf("cpu time: /proc/%d/stat is %q", pid, b)
	}
	return sumTicks(f[11:13])
}

// machineCPU reads what is not idle in the first line of /proc/stat: user, nice,
// system, irq and softirq, see proc_stat(5).
func machineCPU() (float64, error) {
	f, err := machineStat()
	if err != nil {
		return 0, err
	}
	return sumTicks(append(f[1:4:4], f[6:8]...))
}

// machineStat is the first line of /proc/stat.
func machineStat() ([]string, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, fmt.Errorf("cpu time: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return nil, fmt.Errorf("cpu time: /proc/stat begins %q", line)
	}
	return f, nil
}

// stolenWhile returns the share of all processors' time that the host gave to other machines during f.
func stolenWhile(f func() error) (float64, error) {
	var stolen [2]float64
	start := time.Now()
	for i := range stolen {
		stat, err := machineStat()
		if err == nil {
			stolen[i], err = sumTicks(stat[8:9])
		}
		if err != nil {
			return 0, err
		}
		if i == 0 {
			if err := f(); err != nil {
				return 0, err
			}
		}
	}
	return (stolen[1] - stolen[0]) / time.Since(start).Seconds() / float64(runtime.NumCPU()), nil
}

// busyWhile returns the share of all processors' time that was in use during f.
func busyWhile(f func() error) (float64, error) {
	before, err := machineCPU()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	after, err := machineCPU()
	return (after - before) / time.Since(start).Seconds() / float64(runtime.NumCPU()), err
}

func sumTicks(fields []string) (seconds float64, err error) {
	for _, f := range fields {
		v, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cpu time: %w", err)
		}
		seconds += float64(v) / ticks
	}
	return seconds, nil
}

// memoryMB reads one of the sizes in /proc/PID/status, see proc_pid_status(5):
// VmRSS is what is resident, VmHWM its peak. In 10^6 bytes.
func memoryMB(pid int, field string) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			if err != nil {
				return 0, fmt.Errorf("memory: %w", err)
			}
			return kb * 1024 / 1e6, nil
		}
	}
	return 0, fmt.Errorf("memory: /proc/%d/status has no %s", pid, field)
}

// resetPeaks makes VmHWM begin again, see proc_pid_clear_refs(5).
func resetPeaks(ps []*lab.Process) error {
	var errs []error
	for _, p := range ps {
		errs = append(errs, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0))
	}
	return errors.Join(errs...)
}

// peakMB is the largest process's.
func peakMB(ps []*lab.Process) (peak float64, err error) {
	for _, p := range ps {
		v, err := memoryMB(p.PID(), "VmHWM")
		if err != nil {
			return 0, err
		}
		peak = max(peak, v)
	}
	return peak, nil
}
