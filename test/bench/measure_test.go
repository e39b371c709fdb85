package main

import (
	"os"
	"slices"
	"testing"
	"time"
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
		if after >= before+0.05 { // five ticks
			whole, err := machineCPU()
			if err != nil {
				t.Fatal(err)
			}
			if whole-machine < 0.03 {
				t.Errorf("the machine used %.2f s while this process used %.2f s", whole-machine, after-before)
			}
			return
		}
	}
	t.Fatal("20 s of work are not to be seen")
}

func TestProcessCPUOfNobody(t *testing.T) {
	if got, err := processCPU(1 << 30); err == nil {
		t.Fatalf("a process that does not exist used %g s", got)
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	if got := median(v); got != 3 {
		t.Errorf("median of 1 to 5 is %g", got)
	}
	slices.Sort(v)
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(v, q); got != want {
			t.Errorf("quantile %g of 1 to 5 is %g, want %g", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing is %g", got)
	}
}

func TestRatioIsByRound(t *testing.T) {
	ref := &carrier{samples: []sample{{gbps: 4}, {gbps: 1}, {gbps: 2}}}
	c := &carrier{samples: []sample{{gbps: 8}, {gbps: 3}, {gbps: 5}}}
	if got := c.against(ref); got != "2.50" {
		t.Errorf("ratio %s, want 2.50, the median of 2, 3 and 2.5", got)
	}
	if got := c.against(nil); got != "–" {
		t.Errorf("ratio without a reference: %s", got)
	}
}

func TestOptions(t *testing.T) {
	good := options{rounds: 1, duration: time.Second, carriers: carrierNames()}
	if err := good.check(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	for _, bad := range []options{
		{rounds: 0, duration: time.Second, carriers: carrierNames()},
		{rounds: 1, duration: time.Second / 2, carriers: carrierNames()},
		{rounds: 1, duration: time.Second, carriers: []string{"carrier-pigeon"}},
	} {
		if err := bad.check(); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}
