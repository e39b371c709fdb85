package lan

import (
	"fmt"
	"net/netip"
	"time"
)

// Port sends packets as pods do, and takes those that are for this node's addresses for forwarded probes.
type Port interface {
	// Send does not wait.
	Send(packet []byte) error
	// Run calls f with each packet, perhaps cut, and the interface it came in on, until Close or an error. f must not keep b.
	Run(f func(b []byte, link string)) error
	Close()
}

// plugEvery is the time between two attempts to open a port.
const plugEvery = 30 * time.Second

// plug opens the port where there is none, and tells the machine where forwarded probes are taken.
func (s *Service) plug() {
	addrs := s.cfg.Kernel.ProbeAddrs()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.port == nil && addrs != [2]netip.Addr{} && !s.closed && (s.plugged.IsZero() || now.Sub(s.plugged) >= plugEvery) {
		s.plugged = now
		port, err := s.cfg.OpenPort()
		if err != nil {
			s.noPort("LAN paths are proved by gateway probes alone: no port for forwarded ones", err)
		} else {
			s.port = port
			s.wg.Go(func() { s.unplug(port, port.Run(s.inbox.catch)) })
		}
	}
	if s.port == nil {
		addrs = [2]netip.Addr{}
	}
	s.machine.SetProbeAddrs(time.Now(), addrs)
}

// unplug closes a port that is of no use any longer.
func (s *Service) unplug(port Port, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.port == port && port != nil {
		s.lose(err)
	}
}

// lose is unplug for a caller that holds mu.
func (s *Service) lose(err error) {
	if !s.closed {
		s.noPort("the port for forwarded probes is lost; opening another one", err)
	}
	s.port.Close()
	s.port = nil
	s.machine.SetProbeAddrs(time.Now(), [2]netip.Addr{})
}

// noPort logs an error that is not the last one. The caller holds mu.
func (s *Service) noPort(text string, err error) {
	if text += fmt.Sprint(": ", err); text != s.portErr {
		s.portErr = text
		s.cfg.Log.Info(text)
	}
}
