package passon

import (
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/membership/signed"
)

// One member has one exchange in each direction at a time, however long it takes: the places are for all.
func TestOneExchangePerMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, book := New(Config{}), signed.NewBook(nil)
		for _, theirs := range []bool{true, false} {
			if !p.turn(book, "slow", theirs) {
				t.Fatal("no first exchange")
			}
			time.Sleep(10 * passEvery)
			p.forget(nil) // it runs on, whether the member is connected or not
			if p.turn(book, "slow", theirs) {
				t.Errorf("a second exchange beside the first one, begun by the member: %v", theirs)
			}
			if !p.turn(book, "other", theirs) {
				t.Error("another member waits for it")
			}
		}
		p.note("slow", true, 1, signed.Count{}, false)
		time.Sleep(passRest)
		if !p.turn(book, "slow", true) || p.turn(book, "slow", false) {
			t.Error("the end of one direction counts for the other")
		}
		// What comes for nothing counts for the rate.
		p.note("slow", true, 1, signed.Count{Useless: 100 * passRate}, true)
		time.Sleep(50 * time.Second)
		if p.turn(book, "slow", true) {
			t.Error("a member that sends what is useless is heard again too soon")
		}
	})
}
