package epoch

import "testing"

func TestReceiver(t *testing.T) {
	one := Carrier{Nonce: 7, Epoch: 1}
	two := Carrier{Nonce: 7, Epoch: 2, After: 1}
	three := Carrier{Nonce: 7, Epoch: 3, After: 2}
	reborn := Carrier{Nonce: 8, Epoch: 1}
	reborn2 := Carrier{Nonce: 8, Epoch: 2, After: 1}
	type op func(r *Receiver)
	begin := func(c Carrier) op { return func(r *Receiver) { r.Begin(c) } }
	hold := func(c Carrier) op { return func(r *Receiver) { r.Hold(c) } }
	release := func(c Carrier) op { return func(r *Receiver) { r.Release(c) } }
	end := func(c Carrier) op { return func(r *Receiver) { r.End(c) } }
	for name, c := range map[string]struct {
		ops          []op
		of           Carrier
		wait, counts bool
	}{
		"first":                             {[]op{begin(one)}, one, false, false},
		"second":                            {[]op{begin(one), begin(two)}, two, true, true},
		"second, the first has ended":       {[]op{begin(one), begin(two), end(one)}, two, false, false},
		"second, the first unheard":         {[]op{begin(two)}, two, true, true},
		"second, the first came late":       {[]op{begin(two), begin(one), end(one)}, two, false, false},
		"third, the second waits":           {[]op{begin(one), begin(two), begin(three), hold(two)}, three, true, false},
		"third, the second waits no longer": {[]op{begin(one), begin(two), begin(three), hold(two), release(two)}, three, true, true},
		"third, the second has ended":       {[]op{begin(one), begin(two), begin(three), end(two)}, three, false, false},
		"third, the first ended last":       {[]op{begin(one), begin(two), end(two), end(one), begin(three)}, three, false, false},
		"third, the second never used": {
			[]op{begin(one), begin(two), end(two), begin(Carrier{Nonce: 7, Epoch: 3, After: 1})},
			Carrier{Nonce: 7, Epoch: 3, After: 1}, true, true,
		},
		"after idleness":                 {[]op{begin(one), end(one), begin(Carrier{Nonce: 7, Epoch: 2})}, Carrier{Nonce: 7, Epoch: 2}, false, false},
		"another process":                {[]op{begin(two), begin(reborn)}, reborn, false, false},
		"of another process, the second": {[]op{begin(one), end(one), begin(reborn), begin(reborn2)}, reborn2, true, true},
		"of the process before":          {[]op{begin(two), begin(reborn)}, two, false, false},
		"an old process ends nothing":    {[]op{begin(one), begin(reborn), begin(reborn2), end(one)}, reborn2, true, true},
		"what never began ends nothing":  {[]op{begin(two), end(one)}, two, true, true},
	} {
		var r Receiver
		for _, op := range c.ops {
			op(&r)
		}
		if wait, counts := r.MustWait(c.of); wait != c.wait || counts != c.counts {
			t.Errorf("%s: must wait %v, patience counts %v; want %v, %v", name, wait, counts, c.wait, c.counts)
		}
	}
}
