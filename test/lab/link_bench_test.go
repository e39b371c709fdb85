package lab

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// BenchmarkLink measures what a link carries from host to host through two
// bridges, and what the emulator itself lost or brought late. `-benchtime 1x` is
// one flow of five seconds each.
func BenchmarkLink(b *testing.B) {
	const udp, tcp = "udp", "tcp"
	for _, bc := range []struct {
		proto string
		offer string // to the link
		link  string
		most  float64 // Mbit/s of payload that the link can carry, 0 unknown
	}{
		// The queue spans the times in which a busy machine does not run the sender.
		{udp, "130M", "rate=100M queue=1s delay=25ms", 100 * 1472.0 / 1514},
		{tcp, "0", "rate=100M queue=50ms delay=25ms", 100 * 1448.0 / 1514},
		{udp, "650M", "rate=500M queue=1s delay=25ms", 500 * 1472.0 / 1514},
		{tcp, "0", "rate=500M queue=50ms delay=25ms", 500 * 1448.0 / 1514},
		{tcp, "0", "delay=1ms", 0},
	} {
		b.Run(fmt.Sprintf("%s/%s", bc.proto, bc.link), func(b *testing.B) {
			benchmarkLink(b, bc.proto, bc.offer, bc.link, bc.most)
		})
	}
}

func benchmarkLink(b *testing.B, proto, offer, text string, most float64) {
	l := newLab(b)
	hosts := []*NS{server(b, l, "one", 1), server(b, l, "two", 2)}
	k := insertLink(b, l, hosts[0], text)
	if _, err := hosts[1].Start("iperf3", "iperf3", "-s"); err != nil {
		b.Fatal(err)
	}
	args := []string{"iperf3", "-c", "5.5.9.2", "-t", "5", "-O", "1", "-J", "-b", offer}
	if proto == "udp" {
		args = append(args, "-u", "-l", "1472", "-w", "4M")
	} else {
		args = append(args, "-C", "cubic")
	}
	var mbps []float64
	for b.Loop() {
		err := Until(b.Context(), 100*time.Millisecond, func() error {
			return hosts[0].Ping(b.Context(), "5.5.9.2", time.Second)
		})
		if err != nil {
			b.Fatal(err)
		}
		out, err := hosts[0].Run(b.Context(), args...)
		if err != nil {
			b.Fatal(err)
		}
		var r struct {
			End struct {
				Received struct {
					Rate float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			b.Fatal(err)
		}
		mbps = append(mbps, r.End.Received.Rate/1e6)
	}
	var sum float64
	for _, v := range mbps {
		sum += v
	}
	got := sum / float64(len(mbps))
	s := linkStats(b, k)
	b.ReportMetric(got, "Mbit/s")
	if most > 0 {
		b.ReportMetric(100*got/most, "%ofLink")
	}
	b.ReportMetric(float64(s.Up.Ring+s.Down.Ring), "ownLoss")
	b.ReportMetric(float64(s.Up.Late), "late>1ms")
	b.ReportMetric(s.Up.LateMaxMs, "lateMax-ms")
}

// BenchmarkCongestion measures what one TCP flow carries over a long link that loses packets, by the congestion control
// of its sender: what a relay without BBR loses.
func BenchmarkCongestion(b *testing.B) {
	for _, loss := range []string{"0", "0.1%", "1%", "3%"} {
		for _, control := range []string{"bbr", "cubic", "reno"} {
			b.Run(control+"/"+loss, func(b *testing.B) {
				l := newLab(b)
				hosts := []*NS{server(b, l, "one", 1), server(b, l, "two", 2)}
				insertLink(b, l, hosts[0], "rate=100M queue=50ms delay=25ms loss="+loss)
				if _, err := hosts[1].Start("iperf3", "iperf3", "-s"); err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					err := Until(b.Context(), 100*time.Millisecond, func() error { return hosts[0].Ping(b.Context(), "5.5.9.2", time.Second) })
					if err != nil {
						b.Fatal(err)
					}
					out, err := hosts[0].Run(b.Context(), "iperf3", "-c", "5.5.9.2", "-t", "8", "-O", "2", "-J", "-C", control)
					if err != nil {
						b.Fatal(err)
					}
					var r struct {
						End struct {
							Received struct {
								Rate float64 `json:"bits_per_second"`
							} `json:"sum_received"`
						} `json:"end"`
					}
					if err := json.Unmarshal([]byte(out), &r); err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(r.End.Received.Rate/1e6, "Mbit/s")
				}
			})
		}
	}
}
