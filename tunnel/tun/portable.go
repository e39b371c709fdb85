package tun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

// portable is a TUN without offloads: it finishes in user space what a frame
// leaves to the kernel.
type portable struct {
	file *os.File
	name string
}

var _ Device = (*portable)(nil)

func openPortable(cfg Config) (*portable, error) {
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

// plain marks the file close-on-exec and takes back the offloads that the fast
// device may have left on a persistent interface: without a header there would be
// no telling what is unfinished.
func plain(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach the descriptor: %w", err)
	}
	var cerr error
	err = raw.Control(func(fd uintptr) {
		unix.CloseOnExec(int(fd))
		cerr = unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, 0)
	})
	if err := errors.Join(err, cerr); err != nil {
		return fmt.Errorf("take back offloads: %w", err)
	}
	return nil
}

func (d *portable) Read(buf []byte) (int, error) {
	if len(buf) < maxFrame {
		return 0, io.ErrShortBuffer
	}
	n, err := d.file.Read(buf[vnetHdrLen:])
	if err != nil {
		return 0, err
	}
	clear(buf[:vnetHdrLen])
	return vnetHdrLen + n, nil
}

func (d *portable) Write(buf []byte) error {
	if len(buf) <= vnetHdrLen {
		return ErrFrame
	}
	if buf[1] != unix.VIRTIO_NET_HDR_GSO_NONE {
		return writeSegments(d.file, buf, vnetHdrLen)
	}
	if err := completeChecksum(buf); err != nil {
		return err
	}
	_, err := d.file.Write(buf[vnetHdrLen:])
	return err
}

func (d *portable) Close() error       { return d.file.Close() }
func (d *portable) Name() string       { return d.name }
func (d *portable) Kind() string       { return "portable" }
func (d *portable) Offloads() Offloads { return 0 }
