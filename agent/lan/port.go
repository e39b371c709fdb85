package lan

import (
	"context"
	"net/netip"
	"time"

	"edgemesh/internal/wake"
)

// Port sends packets as pods do, and takes those that are for this node's addresses for forwarded probes.
type Port interface {
	// Send does not wait.
	Send(packet []byte) error
	// Run calls f with each packet, perhaps cut, and the index of the interface it came in on, until Close or an error. f must not keep b.
	Run(f func(b []byte, link int)) error
	Close()
}

// portEvery is the time between two attempts to open a port.
const portEvery = time.Second

// keepPort has the port open while the kernel has addresses for it, until ctx ends.
func (s *Service) keepPort(ctx context.Context) {
	last := ""
	for ; ctx.Err() == nil; wake.Sleep(ctx, portEvery) {
		if s.cfg.Kernel.ProbeAddrs() == [2]netip.Addr{} {
			continue
		}
		port, err := s.cfg.OpenPort()
		if err == nil {
			stop := context.AfterFunc(ctx, port.Close)
			s.setPort(port)
			err = port.Run(s.catch)
			s.setPort(nil)
			if stop() {
				port.Close()
			}
		}
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			s.cfg.Log.Info("LAN paths are proved by gateway probes alone: no port for forwarded ones", "err", err)
		}
	}
}

func (s *Service) setPort(p Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port = p
	s.wake.Wake()
}

// catch takes one packet from the port. Answers to gateway probes say so, so it does not wait in the inbox with these.
func (s *Service) catch(b []byte, link int) {
	for _, sock := range s.sockets {
		name := sock.LinkName(link)
		s.mu.Lock()
		s.machine.Caught(b, name)
		s.mu.Unlock()
		return
	}
}
