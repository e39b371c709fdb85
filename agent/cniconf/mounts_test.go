package cniconf

import (
	"errors"
	"strings"
	"testing"
)

func TestReplaced(t *testing.T) {
	info := func(root string) string {
		return "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n" +
			"50 21 254:0 /var/lib/old /etc/cni/net.d rw - ext4 /dev/vda rw\n" + // covered by the next
			"51 21 254:0 " + root + " /etc/cni/net.d rw,relatime master:1 - ext4 /dev/vda rw\n" +
			"52 21 254:0 /opt/a\\040b /opt/a\\040b rw - ext4 /dev/vda rw\nshort\n"
	}
	dirs := []string{"", "/run/edgemesh", "/etc/cni/net.d", "/opt/a b"}
	before := mounts(info("/etc/cni/net.d"), dirs...)
	if len(before) != 2 || before["/opt/a b"] != `/opt/a\040b` {
		t.Errorf("mounts: %q", before)
	}
	for root, is := range map[string]bool{"/etc/cni/net.d": false, "/etc/cni/net.d//deleted": true, "/etc/cni/net.d.old": true} {
		err := replaced(before, mounts(info(root), dirs...))
		if errors.Is(err, ErrReplaced) != is || is && !strings.Contains(err.Error(), root) {
			t.Errorf("%s: %v", root, err)
		}
	}
	if err := replaced(before, mounts("", dirs...)); !errors.Is(err, ErrReplaced) || !strings.Contains(err.Error(), "gone") {
		t.Errorf("gone with its place: %v", err)
	}
	if err := replaced(nil, before); err != nil {
		t.Errorf("mounted later: %v", err)
	}
}
