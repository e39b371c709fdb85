package api

import "testing"

// The condition names the kind of NAT; what is not known leaves what was said before.
func TestPlace(t *testing.T) {
	old := []Condition{{Type: "Ready", Status: "True"}, {Type: NATType, Status: "True", Reason: "Random"}}
	for nat, want := range map[string][2]string{"none": {"False", "None"}, "stable": {"True", "Stable"}, "sequential": {"True", "Sequential"},
		"random": {"True", "Random"}, "unknown": {"True", "Random"}, "": {"True", "Random"}} {
		got := Place{NAT: nat}.Condition(old)
		if len(got) != 1 || got[0].Type != NATType || got[0].Status != want[0] || got[0].Reason != want[1] {
			t.Errorf("%q: %+v, want %v", nat, got, want)
		}
	}
	if got := (Place{}).Condition(nil); len(got) > 0 {
		t.Errorf("nothing is known: %+v", got)
	}
}
