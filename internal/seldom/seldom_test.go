package seldom

import (
	"fmt"
	"testing"
	"time"
)

func TestTell(t *testing.T) {
	var l Log
	now := time.Now()
	if !l.due("a", now) || l.due("a", now.Add(pause-1)) || !l.due("b", now) || !l.due("a", now.Add(pause)) {
		t.Error("not reported once a minute")
	}
	reported := 0
	for i := range 3 * most {
		if l.due(fmt.Sprint("many ", i), now) {
			reported++
		}
	}
	if reported > most || len(l.last) > most {
		t.Errorf("%d are reported, %d remembered", reported, len(l.last))
	}
	if !l.due("later", now.Add(3*pause)) {
		t.Error("nothing is reported again")
	}
}
