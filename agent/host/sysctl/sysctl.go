// Package sysctl reads and sets the kernel's switches below /proc/sys/net: those of
// our interfaces, and those of the host, whose former values it remembers on disk.
//
//	sysctl.go  one value
//	memory.go  the host's values as they were before us
//	before.go  what the host forwarded before us
//	wanted.go  which values are wanted
//	bridges.go the switches of br_netfilter
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// file returns a sysctl's file. Keys have slashes, because interface names may contain dots.
func file(key string) string { return filepath.Join("/proc/sys", key) }

// Read returns a sysctl's value without the line end.
func Read(key string) (string, error) {
	b, err := os.ReadFile(file(key))
	if err != nil {
		err = fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(b)), err
}

// hostSysctls is where the manifests mount the host's /proc/sys/net a second
// time: an unprivileged container's own /proc/sys is read-only. Writes there also act on the
// writer's network namespace.
const hostSysctls = "/host/proc/sys"

func write(key, value string) error {
	err := os.WriteFile(file(key), []byte(value), 0)
	if errors.Is(err, unix.EROFS) {
		if os.WriteFile(filepath.Join(hostSysctls, key), []byte(value), 0) == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("set sysctl: %w (in a container that is not privileged, mount the host's /proc/sys/net at %s/net)", err, hostSysctls)
	}
	return nil
}

// IPv6 returns the reason why this kernel cannot be used for IPv6, "" when it can, and whether
// it was built without IPv6.
func IPv6() (why string, absent bool, err error) {
	v, err := Read("net/ipv6/conf/all/disable_ipv6")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		_, err := os.Stat(file("net/ipv6"))
		return "the kernel has no IPv6", err != nil, nil
	case err != nil:
		return "", false, err
	case v != "0":
		return "the sysctl net.ipv6.conf.all.disable_ipv6 is " + v, false, nil
	}
	return "", false, nil
}
