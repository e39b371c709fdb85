package main

import (
	"math/rand/v2"
	"testing"
)

// What is pushed is popped, once and in its bucket's order, and a bucket with little does not wait for one with much.
func TestQueue(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var q queue
	n := &node{}
	var pushed, popped [128]int
	waiting := 0
	push := func(bucket int) {
		pushed[bucket]++
		waiting++
		q.push(&packet{b: make([]byte, 100+rng.IntN(1400)), bucket: bucket, from: n, at: float64(pushed[bucket])})
	}
	for range 50_000 {
		if rng.IntN(2) == 0 {
			push(rng.IntN(rng.IntN(128) + 1))
			continue
		}
		p := q.pop(0, 1, 1)
		if (p == nil) != (waiting == 0) {
			t.Fatalf("%d packets wait, popped %v", waiting, p)
		}
		if p == nil {
			continue
		}
		waiting--
		if popped[p.bucket]++; p.at != float64(popped[p.bucket]) {
			t.Fatalf("bucket %d: packet %v, wanted %d", p.bucket, p.at, popped[p.bucket])
		}
	}
	for range 3000 {
		push(1)
	}
	push(2)
	for i := 1; ; i++ {
		if p := q.pop(0, 1, 1); p.bucket == 2 {
			if i > 400 {
				t.Errorf("%d packets leave before one that is alone in its bucket", i)
			}
			break
		}
	}
}
