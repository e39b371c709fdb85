package drain

import (
	"testing"
	"time"
)

// The limit follows the rate, within bounds, and a stall is no slow path.
func TestDrain(t *testing.T) {
	now := time.Unix(1000, 0)
	d := New(64<<10, 4<<10, 1<<20)
	run := func(rate int, dur time.Duration, quiet bool) {
		for end := now.Add(dur); now.Before(end); {
			now = now.Add(time.Millisecond)
			took := time.Millisecond
			if quiet {
				took /= 2
			}
			d.Left(rate/1000, took, now)
		}
	}
	run(100<<20, time.Second, false) // 100 MiB/s: 512 KiB in 5 ms
	if l := d.Limit(); l < 480<<10 || l > 540<<10 {
		t.Errorf("limit %d KiB at 100 MiB/s, want some 512", l>>10)
	}
	if r := d.Rate(); r < 99<<20 || r > 101<<20 {
		t.Errorf("a rate of %.1f MiB/s, want 100", r/(1<<20))
	}
	if d.Forget(); d.Rate() != 0 {
		t.Errorf("a rate of %.0f of another path", d.Rate())
	}
	now = now.Add(200 * time.Millisecond) // a retransmission
	run(100<<20, 50*time.Millisecond, false)
	if l := d.Limit(); l < 480<<10 {
		t.Errorf("limit %d KiB after a stall", l>>10)
	}
	now = now.Add(time.Minute)
	run(100<<20, 50*time.Millisecond, false)
	if l := d.Limit(); l < 480<<10 {
		t.Errorf("limit %d KiB after a minute without data", l>>10)
	}
	run(10<<20, 2*time.Second, true) // the application has less to say
	if l := d.Limit(); l < 48<<10 || l > 54<<10 {
		t.Errorf("limit %d KiB at 10 MiB/s on a path of 100, want some 51", l>>10)
	}
	if r := d.Rate(); r < 50<<20 {
		t.Errorf("a rate of %.1f MiB/s after two quiet seconds", r/(1<<20))
	}
	now = now.Add(3 * time.Second)
	d.Left(64<<10, 3*time.Second, now) // one Write, on a path that has become slow
	if l := d.Limit(); l != 4<<10 {
		t.Errorf("limit %d bytes after a Write of 3 s, want the least", l)
	}
	run(1<<20, 3*time.Second, false)
	if l := d.Limit(); l < 4<<10 || l > 6<<10 {
		t.Errorf("limit %d bytes at 1 MiB/s, want some 5 KiB", l)
	}
	run(1<<30, 100*time.Millisecond, false)
	if l := d.Limit(); l != 1<<20 {
		t.Errorf("limit %d bytes on a fast path, want the most", l)
	}
}
