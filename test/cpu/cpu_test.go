package cpu

import (
	"os"
	"testing"
	"time"
)

func TestWorkIsCounted(t *testing.T) {
	machine := Now()
	before, err := Process(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 200*time.Millisecond; {
	}
	after, err := Process(os.Getpid())
	if err != nil || after <= before {
		t.Errorf("%v, then %v: %v", before, after, err)
	}
	if m := Now().Since(machine); m.Busy <= 0 || m.All < m.Busy || m.Share() > 1 {
		t.Errorf("the machine: %+v", m)
	}
	if _, err := Process(1 << 30); err == nil {
		t.Error("a process that is not there")
	}
}
