package ladder

import (
	"slices"
	"testing"
	"time"
)

// TestRenewalIsNoSilence: while a TCP path's TLS session is followed by the next one, nothing arrives from the peer for two round
// trips (close_notify and hello of identity's tlsConn), and the kernel hears the next hop once a round trip. No
// path is given up for that which is not for its first data anyway: those are answered after deadAfter there.
func TestRenewalIsNoSilence(t *testing.T) {
	for _, relayed := range []bool{false, true} {
		for rtt := 50 * ms; rtt < deadAfter; rtt += 50 * ms {
			if at := renewed(t, relayed, rtt, 2*rtt); at != 0 {
				t.Errorf("relayed %v, round trip %v: given up %v after the renewal began", relayed, rtt, at)
			}
		}
		if at := renewed(t, relayed, 200*ms, time.Hour); at == 0 || at > DeadIdle+200*ms {
			t.Errorf("relayed %v: one that never ends is given up after %v", relayed, at)
		}
		if at := renewed(t, relayed, deadAfter+100*ms, 0); at >= 0 {
			t.Errorf("relayed %v: a path of that round trip carries its first data: the bound of this test is too low", relayed)
		}
	}
}

// renewed plays a busy path on which answers are held up for so long, and returns how long after that began it is given up; 0: it is
// not, less: before.
func renewed(t *testing.T, relayed bool, rtt, pause time.Duration) time.Duration {
	t.Helper()
	s := newScene(t, true)
	s.tell(Up{1, Link{Relayed: relayed}})
	s.tell(Ready{1})
	first := s.now + rtt // before that nothing is acknowledged
	begin, answers := s.now+10*time.Second, []Time{first}
	for moved := uint64(1); s.now < begin+15*time.Second; moved += bulkBytes {
		s.now = min(s.m.Next(), s.now+20*ms)
		var acts []string
		if len(answers) > 0 && answers[0] <= s.now {
			answers = answers[1:]
			acts = s.tell(Answer{Path: 1, Last: len(answers) == 0})
		}
		carrier := (s.now - begin + 1000*rtt) % rtt
		if s.now < first {
			carrier = time.Minute
		}
		acts = append(acts, s.tell(Wake{Samples: []Sample{{Path: 1, Moved: moved, Heard: s.now, Carrier: carrier, RTT: rtt, Streams: 1, Lanes: 1}}})...)
		for _, a := range acts {
			switch at := s.now + rtt; {
			case a == "Close1":
				return s.now - begin
			case a == "Probe1" && at > begin && at < begin+pause:
				answers = append(answers, begin+pause)
			case a == "Probe1":
				answers = append(answers, at)
			}
		}
		slices.Sort(answers)
	}
	return 0
}
