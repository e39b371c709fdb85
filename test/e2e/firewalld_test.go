package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// firewalld starts the real thing as it comes, with a bus and a configuration of its own,
// and does what doctor says about it.
func firewalld(t *testing.T, n *lab.Node) {
	for _, p := range []string{"firewalld", "dbus-daemon"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("NOT RUN: " + p + " is not installed; nothing installs it here, since it would take over this machine's firewall")
		}
	}
	bus, dir := dbus(t, n), filepath.Join(n.Dir, "firewalld")
	ok(t, n.Script("cp -a /etc/firewalld "+dir, "rm -rf "+dir+"/zones/*.xml"))
	_, err := n.NS.Start("firewalld-"+n.Name, "env", "DBUS_SYSTEM_BUS_ADDRESS="+bus,
		"firewalld", "--nofork", "--nopid", "--system-config", dir, "--log-file", dir+".log")
	ok(t, err)
	ok(t, lab.Until(within(t, 30*time.Second), 200*time.Millisecond,
		func() error { return firewallCmd(t, n, "--state") }))
	ok(t, firewallCmd(t, n, "--permanent", "--zone=trusted", "--add-source="+lab.DefaultRange4,
		"--add-source="+lab.DefaultRange6))
	ok(t, firewallCmd(t, n, "--permanent", "--add-port=5210/udp"))
	ok(t, firewallCmd(t, n, "--reload"))
}

// dbus starts a system bus of the node's own, where everybody may do everything. It returns its address.
func dbus(t *testing.T, n *lab.Node) string {
	t.Helper()
	bus := filepath.Join(n.Dir, "bus")
	ok(t, os.WriteFile(bus+".conf", []byte(`<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=`+bus+`</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>
`), 0o600))
	_, err := n.NS.Start("bus-"+n.Name, "dbus-daemon", "--config-file="+bus+".conf", "--nofork", "--nopidfile")
	ok(t, err)
	return "unix:path=" + bus
}

func firewallCmd(t *testing.T, n *lab.Node, args ...string) error {
	cmd := append([]string{
		"env", "DBUS_SYSTEM_BUS_ADDRESS=unix:path=" + filepath.Join(n.Dir, "bus"), "firewall-cmd",
	}, args...)
	if out, err := n.Run(t.Context(), cmd...); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}
