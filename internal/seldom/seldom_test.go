package seldom

import (
	"fmt"
	"testing"
	"time"
)

func TestTell(t *testing.T) {
	var l Log
	now := time.Now()
	if !l.tell("a", now) || l.tell("a", now.Add(pause-1)) || !l.tell("b", now) || !l.tell("a", now.Add(pause)) {
		t.Error("not told once a minute")
	}
	told := 0
	for i := range 3 * most {
		if l.tell(fmt.Sprint("many ", i), now) {
			told++
		}
	}
	if told > most || len(l.last) > most {
		t.Errorf("%d are told, %d remembered", told, len(l.last))
	}
	if !l.tell("later", now.Add(3*pause)) {
		t.Error("nothing is told again")
	}
}
