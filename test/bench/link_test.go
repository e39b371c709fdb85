package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab/link"
)

func TestLinkOptions(t *testing.T) {
	o := options{rounds: 1, duration: time.Second, carriers: linkCarriers, link: true}
	if err := o.check(); err != nil {
		t.Errorf("%+v: %v", o, err)
	}
	d, err := link.Parse(linkText)
	if err != nil || d.Rate != 100e6 || d.Delay != 25*time.Millisecond || d.QueueTime != 50*time.Millisecond || d.Loss != 0 {
		t.Errorf("the link is %+v, %v", d, err)
	}
}

func TestLinkTables(t *testing.T) {
	var out strings.Builder
	rows := []linkRow{{carrier: "wireguard-go", loss: 0.01, samples: []sample{
		{gbps: 0.003, idle: []float64{50, 51, 52}, load: []float64{60, 70, 80}, lost: 2, path: "–"},
		{gbps: 0.001, idle: []float64{50, 51, 52}, load: []float64{62, 72, 82}, lost: 1, path: "–"},
		{gbps: 0.002, idle: []float64{50, 51, 52}, load: []float64{61, 71, 81}, path: "–"},
	}}}
	if err := linkTable(&out, rows, options{rounds: 3, duration: time.Second}); err != nil {
		t.Fatal(err)
	}
	carriers := []*carrier{{name: "edgemesh"}}
	streams := [][]stream{{{lost: 1, jitter: 3, bulk: 90}, {lost: 3, jitter: 1, bulk: 70}, {lost: 2, jitter: 2, bulk: 80}}}
	if err := streamTable(&out, carriers, streams); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Fields(line))
	}
	for _, want := range []string{
		"1 % wireguard-go 2.0 1.0–3.0 51.0 71.0 81.0 81.0 3 –",
		"edgemesh 2.00 % 2.00 80.0",
	} {
		if !slices.ContainsFunc(got, func(f []string) bool { return strings.Join(f, " ") == want }) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}
