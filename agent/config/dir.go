package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"
)

// KeyError says what is wrong with the value of one key, as found when it was used.
type KeyError struct {
	Key string // as written in the file, or a flag
	Err error
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// MakeDir creates a directory that will be written to, and its parents. The error is a
// *KeyError that names the remedy.
func MakeDir(key, dir string, mode os.FileMode) error {
	if dir == "" {
		return &KeyError{key, errors.New("is empty; choose another directory, or leave it out for the default")}
	}
	err := os.MkdirAll(dir, mode)
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
		if err == nil {
			return nil
		}
		err = &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	remedy := "choose another directory"
	switch {
	case errors.Is(err, unix.EROFS):
		remedy = "mount it writable, or choose another directory"
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EEXIST):
		remedy = "a file is in the way: remove it, or choose another directory"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		remedy = "free some space, or choose another directory"
	case errors.Is(err, fs.ErrPermission):
		remedy = "run as root, or choose another directory that this user may write to"
	}
	return &KeyError{key, fmt.Errorf("%w; %s", err, remedy)}
}

// OutsideOf checks that no address of list is inside the cluster's ranges: a
// connection there would run inside the tunnel that it is meant to carry. The error is
// a *KeyError.
func OutsideOf(ranges []netip.Prefix, key string, list []ma.Multiaddr) error {
	for i, a := range list {
		ip, err := manet.ToIP(a)
		if err != nil {
			continue // a name
		}
		addr, _ := netip.AddrFromSlice(ip)
		for _, r := range ranges {
			if r.Contains(addr.Unmap()) {
				return &KeyError{fmt.Sprintf("%s[%d]", key, i),
					fmt.Errorf("%s is inside the cluster's range %s (podCIDRs); use an address of this host that is reachable without the pod network", a, r)}
			}
		}
	}
	return nil
}
