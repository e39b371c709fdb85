package report

import "strconv"

// Metric is one measured quantity, by the name it has in files.
type Metric string

// What the parts measure. Pings and answers are round-trip times.
const (
	FlowGbps   Metric = "flow.gbps"       // payload of one TCP flow, 10^9 bit/s
	FlowMbps   Metric = "flow.mbps"       // the same over a link, 10^6 bit/s
	Second     Metric = "flow.secondMbps" // the same in its second second, as the sender sees it
	FourGbps   Metric = "four.gbps"       // of four at the same time, together
	TunnelCPU  Metric = "cpu.tunnel"      // seconds per 10^9 bytes, the carrier's own processes
	TunnelMs   Metric = "cpu.tunnelMs"    // the same in ms per second
	Switches   Metric = "switches"        // voluntary context switches of these per second
	Frames     Metric = "frames"          // frames on the link per second, both directions
	MachineCPU Metric = "cpu.machine"     // seconds per 10^9 bytes, all that was not idle
	AnswerTCP  Metric = "rr.tcp.us"       // round trip of 1 byte over TCP, median, µs
	AnswerUDP  Metric = "rr.udp.us"       // over UDP
	PingIdle   Metric = "ping.idle.ms"    // median
	PingLoad   Metric = "ping.load.ms"    // beside the flow, median
	PingLoad99 Metric = "ping.load99.ms"  // 99th percentile
	PingMax    Metric = "ping.max.ms"     // worst
	PingLost   Metric = "ping.lost"       // share of those beside the flow
	PeakMB     Metric = "memory.peakMB"   // largest process of the carrier, resident at most, 10^6 bytes
	PacketRate Metric = "packets.kpps"    // thousand datagrams per second, the highest rate without loss
	PacketCPU  Metric = "packets.cpu"     // machine's seconds per million of them
	Kept       Metric = "requests.kept"   // thousand small HTTP requests per second, over connections that are kept
	New        Metric = "requests.new"    // over a new one each
	SmallRate  Metric = "small.kpps"      // thousand datagrams of 64 bytes that arrive per second
	StreamLost Metric = "stream.lost"     // share of datagrams of a steady stream beside a flow
	Jitter     Metric = "stream.jitterMs" // its jitter, RFC 3550, section 6.4.1
	StreamFlow Metric = "stream.flowMbps" // the flow beside it
	PeerMB     Metric = "memory.peerMB"   // for each peer in use, 10^6 bytes
	IdleMB     Metric = "idle.rssMB"      // resident, 10^6 bytes
	IdleCPU    Metric = "idle.cpu"        // share of one processor
	StartPods  Metric = "start.podsS"     // until pods can be made, seconds
	StartReady Metric = "start.readyS"    // until all members are listed and the relay serves it, seconds
	PathAfter  Metric = "path.afterS"     // from the first packet until both ends took the path, seconds
	ApplyMs    Metric = "apply.ms"        // until the kernel has all peers
	CodeNs     Metric = "code.ns"         // per packet
	CodeAllocs Metric = "code.allocs"     // heap allocations per packet
)

// column is how a metric is shown.
type column struct {
	title  string
	digits int
	scale  float64 // 0 is 1
}

func (m Metric) column() column {
	c, ok := map[Metric]column{
		FlowGbps:   {title: "1 flow, Gbit/s", digits: 2},
		FlowMbps:   {title: "Mbit/s", digits: 1},
		Second:     {title: "in its 2nd second", digits: 1},
		FourGbps:   {title: "4 flows, Gbit/s", digits: 2},
		TunnelCPU:  {title: "tunnel", digits: 2},
		TunnelMs:   {title: "tunnel, ms of CPU a second", digits: 1},
		Switches:   {title: "context switches a second", digits: 0},
		Frames:     {title: "frames a second", digits: 0},
		MachineCPU: {title: "CPU-s per GB", digits: 2},
		AnswerTCP:  {title: "1-byte answer, µs", digits: 0},
		AnswerUDP:  {title: "by UDP, µs", digits: 0},
		PingIdle:   {title: "ping idle, ms", digits: 2},
		PingLoad:   {title: "under load p50", digits: 2},
		PingLoad99: {title: "p99", digits: 2},
		PingMax:    {title: "max", digits: 1},
		PingLost:   {title: "pings lost, %", digits: 1, scale: 100},
		PeakMB:     {title: "memory, MB", digits: 0},
		PacketRate: {title: "thousand packets/s", digits: 1},
		PacketCPU:  {title: "CPU-s per million", digits: 1},
		Kept:       {title: "thousand requests/s, connections kept", digits: 1},
		New:        {title: "a new one each", digits: 1},
		SmallRate:  {title: "thousand 64-byte datagrams/s that arrive", digits: 1},
		StreamLost: {title: "lost, %", digits: 2, scale: 100},
		Jitter:     {title: "jitter, ms", digits: 2},
		StreamFlow: {title: "flow beside it, Mbit/s", digits: 1},
		PeerMB:     {title: "memory for each peer, MB", digits: 2},
		IdleMB:     {title: "RSS, MB", digits: 1},
		IdleCPU:    {title: "CPU, %", digits: 2, scale: 100},
		StartPods:  {title: "pods can be made after, s", digits: 2},
		StartReady: {title: "all members and the relay after, s", digits: 2},
		PathAfter:  {title: "path after, s", digits: 1},
		ApplyMs:    {title: "apply, ms", digits: 1},
		CodeNs:     {title: "ns", digits: 0},
		CodeAllocs: {title: "allocations", digits: 0},
	}[m]
	if !ok {
		return column{title: string(m), digits: 2}
	}
	return c
}

// text is the value as the column shows it.
func (c column) text(v float64) string {
	if c.scale != 0 {
		v *= c.scale
	}
	return strconv.FormatFloat(v, 'f', c.digits, 64)
}
