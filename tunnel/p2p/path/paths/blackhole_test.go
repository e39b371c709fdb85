package paths

import (
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/tunnel/p2p/carrier/dialer"
)

// Figures as the kernel gave them for connections over emulated links, or a little changed.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		what   string
		unack  int
		proven bool
		info   unix.TCPInfo
		want   Verdict
	}{
		{"bulk data in a hole, one probe arrived", 65362, false,
			unix.TCPInfo{Retransmits: 2, Unacked: 46, Sacked: 1, Last_data_recv: 368, Last_data_sent: 116, Rtt: 1051}, BlackHole},
		{"the same, the second repeat is on its way", 65362, false,
			unix.TCPInfo{Retransmits: 2, Unacked: 46, Sacked: 1, Last_data_recv: 268, Last_data_sent: 16, Rtt: 1051}, Suspect},
		{"the same, and another path has found it", 65362, true,
			unix.TCPInfo{Retransmits: 1, Unacked: 46, Sacked: 1, Last_data_recv: 340, Last_data_sent: 124, Rtt: 1051}, BlackHole},
		{"segments that are not quite full", 131576, false,
			unix.TCPInfo{Retransmits: 2, Unacked: 93, Sacked: 2, Last_data_recv: 488, Last_data_sent: 308, Rtt: 3429}, BlackHole},
		{"one large segment, behind it a small one that arrived", 1474, false,
			unix.TCPInfo{Retransmits: 3, Unacked: 2, Sacked: 1, Last_data_recv: 208, Last_data_sent: 140, Rtt: 6600}, BlackHole},
		{"the same, twice", 1474, false,
			unix.TCPInfo{Retransmits: 2, Unacked: 2, Sacked: 1, Last_data_recv: 208, Last_data_sent: 140, Rtt: 6600}, Suspect},
		{"nothing but large segments, the peer keeps talking", 585480, false,
			unix.TCPInfo{Retransmits: 3, Unacked: 410, Last_data_recv: 100, Last_data_sent: 400, Rtt: 20000}, BlackHole},
		{"the way was cut for a second", 226430, false,
			unix.TCPInfo{Retransmits: 2, Unacked: 211, Last_data_recv: 48, Last_data_sent: 548, Rtt: 20000}, Suspect},
		{"cut when the third repeat left, and heard before", 226430, false,
			unix.TCPInfo{Retransmits: 3, Unacked: 211, Last_data_recv: 600, Last_data_sent: 400, Rtt: 20000}, Suspect},
		{"the peer is silent", 226430, false,
			unix.TCPInfo{Retransmits: 3, Unacked: 211, Last_data_recv: 1048, Last_data_sent: 1200, Rtt: 20000}, Innocent},
		{"bulk data with a loss of 10 %", 23332, false,
			unix.TCPInfo{Retransmits: 2, Unacked: 18, Sacked: 17, Last_data_recv: 392, Last_data_sent: 112, Rtt: 20908}, Innocent},
		{"with 20 %", 29640, false,
			unix.TCPInfo{Retransmits: 2, Unacked: 43, Sacked: 42, Last_data_recv: 288, Last_data_sent: 572, Rtt: 82657, Snd_mss: 1448}, Suspect},
		{"with 15 %, little under way", 994, false,
			unix.TCPInfo{Retransmits: 2, Unacked: 4, Sacked: 1, Last_data_recv: 152, Last_data_sent: 692, Rtt: 54758}, Suspect},
		{"with 20 %, while another path seems to be in a hole", 8413, true,
			unix.TCPInfo{Retransmits: 1, Unacked: 15, Sacked: 14, Last_data_recv: 528, Last_data_sent: 228, Rtt: 83074}, Suspect},
		{"probes and answers, lost in a row", 972, false,
			unix.TCPInfo{Retransmits: 3, Unacked: 8, Sacked: 5, Last_data_recv: 32, Last_data_sent: 224, Rtt: 81194}, Innocent},
		{"one probe", 84, true,
			unix.TCPInfo{Retransmits: 3, Unacked: 1, Last_data_recv: 100, Last_data_sent: 400, Rtt: 4700}, Innocent},
		{"nothing is repeated", 65362, true,
			unix.TCPInfo{Unacked: 46, Sacked: 1, Last_data_recv: 268, Last_data_sent: 116, Rtt: 1051}, Innocent},
		{"nothing is smaller", 65362, true,
			unix.TCPInfo{Retransmits: 3, Unacked: 125, Last_data_recv: 100, Last_data_sent: 400, Rtt: 1051, Snd_mss: dialer.MinMSS - 12}, Innocent},
	} {
		if c.info.Snd_mss == 0 {
			c.info.Snd_mss = 1428
		}
		if got := judge(&c.info, c.unack, c.proven); got != c.want {
			t.Errorf("%s: Verdict %d, want %d", c.what, got, c.want)
		}
	}
}
