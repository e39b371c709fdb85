package main

import (
	"errors"
	"os"
	"testing"
	"time"

	"edgemesh/test/lab"
)

func TestProcessCPUCountsWhatIsBurnt(t *testing.T) {
	before, err := processCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	machine, err := machineCPU()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		after, err := processCPU(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if after >= before+0.2 {
			whole, err := machineCPU()
			if err != nil {
				t.Fatal(err)
			}
			if whole-machine < 0.1 { // counted by samples, a tick apart
				t.Errorf("the machine used %.2f s while this process used %.2f s", whole-machine, after-before)
			}
			return
		}
	}
	t.Fatal("20 s of work are not to be seen")
}

func TestStolen(t *testing.T) {
	for _, want := range []error{nil, os.ErrClosed} {
		share, err := stolenWhile(func() error { time.Sleep(20 * time.Millisecond); return want }) // sleep: there is a time to measure
		if !errors.Is(err, want) || share < 0 || share > 1.5 {
			t.Errorf("%g, %v", share, err)
		}
	}
}

func TestProcessOfNobody(t *testing.T) {
	if got, err := processCPU(1 << 30); err == nil {
		t.Errorf("a process that does not exist used %g s", got)
	}
	if got, err := memoryMB(1<<30, "VmRSS"); err == nil {
		t.Errorf("a process that does not exist has %g MB", got)
	}
}

func TestMemory(t *testing.T) {
	rss, err := memoryMB(os.Getpid(), "VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	peak, err := memoryMB(os.Getpid(), "VmHWM")
	if err != nil {
		t.Fatal(err)
	}
	if rss < 1 || peak < 1 {
		t.Errorf("%g MB resident, at most %g: a Go program has more", rss, peak)
	}
	if _, err := memoryMB(os.Getpid(), "VmNone"); err == nil {
		t.Error("a size that does not exist was found")
	}
	if peak, err := peakMB([]*lab.Process{}); err != nil || peak != 0 {
		t.Errorf("no process has %g MB, %v", peak, err)
	}
}
