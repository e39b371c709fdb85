package daemon

import (
	"log/slog"

	"edgemesh/agent/control"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/tun"
)

// allOffloads are those of a kernel since 6.2.
const allOffloads = tun.Checksum | tun.TSO4 | tun.TSO6 | tun.TSOECN | tun.USO4 | tun.USO6

// degradations lists what this host does not provide: for connections, and for the device.
func degradations(dev tun.Device, of []socket.Fallback) []control.Fallback {
	var out []control.Fallback
	for _, f := range of {
		out = append(out, control.Fallback(f))
	}
	switch have := dev.Offloads(); {
	case dev.Kind() == "portable":
		out = append(out, control.Fallback{What: "offloads",
			Effect: "the TUN carries single packets: several times the CPU for the same throughput",
			Remedy: "use a kernel whose TUN has IFF_VNET_HDR"})
	case have&allOffloads != allOffloads:
		out = append(out, control.Fallback{What: "offloads",
			Effect: "the TUN's offloads are " + have.String() + ": the rest is done in software",
			Remedy: "use Linux 6.2 or later for UDP super-segments (uso4, uso6)"})
	}
	return out
}

// reportDegraded logs what this host does not provide.
func reportDegraded(log *slog.Logger, all []control.Fallback) {
	for _, f := range all {
		log.Warn("running degraded: "+f.What, "effect", f.Effect, "remedy", f.Remedy)
	}
}
