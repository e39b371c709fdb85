package plan

import (
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/membership/mesh"
)

// Names of interfaces. Operators and other programs may rely on them.
const (
	BridgeName = conf.DefaultBridge
	TUNName    = "edgemesh-tun"
	VXLANName  = "edgemesh-vx"
	PortName   = "edgemesh-fwd" // a port of the bridge, for forwarded probes
	// LinkPrefix begins the name of each of them.
	LinkPrefix = "edgemesh-"

	// The names of earlier agents: their devices are removed once ours carry the routes. KubeEdge's EdgeMesh has a
	// device of the first name.
	FormerTUNName   = "edgemesh0"
	FormerVXLANName = "edgemesh.vx"
)

// Numbers of routing. Operators and other programs may rely on them.
const (
	TableID       = 5210     // our routing table
	PathTable     = 5211     // LAN paths of pods alone, where nodes' own packets take the tunnel
	MainRule      = 32766    // the priority of the kernel's rule for table main: ours come before it
	KeepRule      = 5200     // the priority of ours in keep mode
	Mark          = 0xed0000 // SO_MARK of the agent's own sockets
	MarkMask      = 0xff0000 //
	RouteProtocol = 210      // rtm_protocol of our routes and rules
	RouteMetric   = 1024     // of the routes that carry packets
	// PathMetric is that of routes of native and VXLAN paths: before all others.
	PathMetric = 512
	// PathRealm is the realm of IPv4 routes of paths whose next hop is IPv6.
	PathRealm = 0xed
	// BlackholeMetric is far behind every other route: what no route carries is
	// dropped here and never reaches the host's default route.
	BlackholeMetric = 4278198272

	// ProbeTable is the first of mesh.ProbeSlots tables for probes alone, and ProbeMark
	// the mark that leads to it. Slot n has table + n and mark + n<<16, under MarkMask. ForwardTable is that of forwarded probes.
	ProbeTable   = 5220
	ProbeMark    = 0xe80000
	ForwardTable = ProbeTable + mesh.ProbeSlots
	// BackTable is the first of BackSlots tables in which the reverse path of packets is looked for that the guard has let in, and BackMark
	// the mark, under MarkMask, that leads there meanwhile: from each of BackLinks uplinks, from VXLAN's device and from the TUN.
	BackTable = ForwardTable + 1
	BackLinks = 3
	BackVXLAN = BackLinks
	BackTUN   = BackLinks + 1
	BackSlots = BackLinks + 2
	BackMarks = 0xe00000 // under OwnMarkMask
	// ForwardGroup is the NFLOG group that forwarded probes are taken from.
	ForwardGroup = 5212
	// OwnMarks under OwnMarkMask covers Mark and all marks of probes.
	OwnMarks    = 0xe80000
	OwnMarkMask = 0xf80000

	// KubeletPort is kubelet's.
	KubeletPort = "10250"

	// KubeMark is kube-proxy's mark of packets to be masqueraded (its masqueradeBit 14).
	KubeMark = 0x4000
)

// SlotMark is the SO_MARK of probes of one slot.
func SlotMark(slot int) int { return ProbeMark + slot<<16 }

// BackMark is that of packets that came in by one of these.
func BackMark(n int) int { return BackMarks | n<<16 }

// OurTable reports whether a routing table is ours.
func OurTable(id int) bool {
	return id == TableID || id == PathTable || id >= ProbeTable && id < BackTable+BackSlots
}

// OurLink reports whether an interface has one of our names.
func OurLink(name string) bool {
	return name == BridgeName || name == TUNName || name == VXLANName
}
