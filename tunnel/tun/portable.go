package tun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

// portable is a TUN without offloads: what a frame leaves to the kernel is done in user space.
type portable struct {
	file *os.File
	name string
}

var _ Device = (*portable)(nil)

func openPortable(cfg Config) (Device, error) {
	wcfg := water.Config{DeviceType: water.TUN}
	wcfg.Name = cfg.Name
	wcfg.Persist = cfg.Persist

	syscall.ForkLock.RLock() // water opens without O_CLOEXEC
	ifce, err := water.New(wcfg)
	if err != nil {
		syscall.ForkLock.RUnlock()
		return nil, explain(err)
	}
	file, ok := ifce.ReadWriteCloser.(*os.File)
	if !ok {
		syscall.ForkLock.RUnlock()
		return nil, errors.Join(fmt.Errorf("water returned a %T, want a file", ifce.ReadWriteCloser), ifce.Close())
	}
	err = plain(file)
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &portable{file: file, name: cfg.Name}, nil
}

// plain marks the file close-on-exec and turns off the offloads that the fast device may have left on a persistent
// interface: without a header nothing marks what is unfinished.
func plain(file *os.File) error {
	err := control(file, func(fd int) error {
		unix.CloseOnExec(fd)
		return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0)
	})
	if err != nil {
		return fmt.Errorf("turn off offloads: %w", err)
	}
	return nil
}

func (d *portable) Read(buf []byte) (int, error) {
	if len(buf) < virtio.MaxFrame {
		return 0, io.ErrShortBuffer
	}
	n, err := d.file.Read(buf[virtio.HeaderLen:])
	if err != nil {
		return 0, err
	}
	clear(buf[:virtio.HeaderLen])
	return virtio.HeaderLen + n, nil
}

func (d *portable) Write(buf []byte) error {
	if len(buf) <= virtio.HeaderLen {
		return ErrFrame
	}
	if virtio.Get(buf).GSOType != virtio.GSONone {
		return writeSegments(d.file, buf, virtio.HeaderLen)
	}
	if !virtio.Complete(buf) {
		return ErrFrame
	}
	_, err := d.file.Write(buf[virtio.HeaderLen:])
	return err
}

// Share implements Device: packets of an interface without headers are not kept.
func (d *portable) Share() (int, error) { return 0, errors.ErrUnsupported }

func (d *portable) Pause() error       { return d.file.SetReadDeadline(past) }
func (d *portable) Close() error       { return d.file.Close() }
func (d *portable) Name() string       { return d.name }
func (d *portable) Kind() string       { return "portable" }
func (d *portable) Offloads() Offloads { return 0 }
func (d *portable) UDPSegments() bool  { return false }
func (d *portable) Pending() bool      { return pending(d.file) }

// writeSegments writes the packets that a super-segment stands for to w, one Write each, without the first skip bytes of
// the virtio-net header.
func writeSegments(w io.Writer, frame []byte, skip int) error {
	var h inet.Header
	var s virtio.Splitter
	v, ok := virtio.Check(frame, &h)
	if !ok || !s.Split(frame, v, &h, true) {
		return ErrFrame
	}
	for seg := s.Next(); seg != nil; seg = s.Next() {
		if _, err := w.Write(seg[skip:]); err != nil {
			return err
		}
	}
	return nil
}
