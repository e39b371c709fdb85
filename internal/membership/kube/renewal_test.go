package kube

import (
	"testing"
	"time"
)

// A Lease is renewed or it is not; one look decides nothing.
func TestRenewal(t *testing.T) {
	for _, test := range []struct {
		looks string // versions, "-" is none
		want  bool
	}{
		{"1", false}, {"12", false}, {"123", true}, {"11111", false},
		{"12333", true}, {"123333", false}, {"123--", true}, {"123---", false},
		{"123333456", true}, {"12333345", true}, {"1233334", false}, {"12-3-4-5", false}, {"-----", false},
	} {
		var r renewal
		got := false
		for _, v := range test.looks {
			version := string(v)
			if version == "-" {
				version = ""
			}
			got = r.look(version)
		}
		if got != test.want {
			t.Errorf("%s: kept %v, want %v", test.looks, got, test.want)
		}
	}
}

// The Lease is looked at more rarely the more agents do so, and often again as soon as it may not be renewed.
func TestRenewalPause(t *testing.T) {
	for _, x := range []struct {
		r       renewal
		members int
		want    time.Duration
	}{
		{renewal{kept: true}, 3, lookEvery},
		{renewal{kept: true}, 1000, lookEvery},
		{renewal{kept: true}, 10_000, 100 * time.Second},
		{renewal{kept: true, silent: 1}, 10_000, lookEvery},
		{renewal{good: 1}, 10_000, lookEvery},
	} {
		if got := x.r.pause(x.members); got != x.want {
			t.Errorf("%+v, %d members: %v, want %v", x.r, x.members, got, x.want)
		}
	}
}
