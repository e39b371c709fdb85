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

// The Lease is looked at rarely while it is renewed, and often as soon as it may not be.
func TestRenewalPause(t *testing.T) {
	for r, want := range map[renewal]time.Duration{
		{kept: true}: keptEvery, {kept: true, silent: 1}: lookEvery, {good: 1}: lookEvery,
	} {
		if got := r.pause(); got != want {
			t.Errorf("%+v: %v, want %v", r, got, want)
		}
	}
}
