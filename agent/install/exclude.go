package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"edgemesh/internal/durable"
	"edgemesh/manifests"
)

// dhcpcdConf has no directory for drop-ins: the lines come first in it, where no block of one interface has begun.
const dhcpcdConf = "/etc/dhcpcd.conf"

// dhcpcdLines keep dhcpcd off the pod network's interfaces.
const dhcpcdLines = "# edgemesh-agent: its own interfaces, and the host's ends of pods'; `edgemesh-agent uninstall` removes these two lines.\n" +
	"denyinterfaces edgemesh-* vethem*\n"

// exclude has the programs on this host that configure every interface leave alone those of the pod network.
func (i *installer) exclude(ctx context.Context) error {
	for _, p := range []struct{ needs, path, text, unit string }{
		{"/etc/systemd", "/etc/systemd/network/10-edgemesh.network", manifests.Networkd, "systemd-networkd.service"},
		{"/etc/NetworkManager", "/etc/NetworkManager/conf.d/10-edgemesh.conf", manifests.NetworkManager, "NetworkManager.service"},
	} {
		if !exists(i.Path(p.needs)) || exists(filepath.Join(i.Path("/usr/lib"), strings.TrimPrefix(p.path, "/etc"))) { // the package brings it
			continue
		}
		before := i.rec.Files[p.path]
		if err := i.Put(p.path, []byte(p.text), 0o644); err != nil {
			return err
		}
		if i.rec.Files[p.path] != before {
			i.reload(ctx, p.unit)
		}
	}
	have, err := os.ReadFile(i.Path(dhcpcdConf))
	if errors.Is(err, os.ErrNotExist) || strings.Contains(string(have), dhcpcdLines) {
		return nil
	}
	if err == nil {
		err = i.edit(dhcpcdConf, dhcpcdLines+string(have))
	}
	if err == nil {
		i.reload(ctx, "dhcpcd.service")
	}
	return err
}

// include takes back what exclude added to a file of another program; take removes the files of its own.
func (i *installer) include() error {
	have, err := os.ReadFile(i.Path(dhcpcdConf))
	if before, after, found := strings.Cut(string(have), dhcpcdLines); err == nil && found {
		return i.edit(dhcpcdConf, before+after)
	}
	return nil
}

// edit replaces another program's file, and keeps who may read it.
func (i *installer) edit(path, text string) error {
	info, err := os.Stat(i.Path(path))
	if err == nil {
		err = durable.WriteFile(i.Path(path), []byte(text), info.Mode().Perm())
	}
	if err == nil {
		i.Say("edited   %s", path)
	}
	return err
}

// reload has a program that runs read its configuration again. The agent removes what one that does not has configured.
func (i *installer) reload(ctx context.Context, unit string) {
	if i.o.Systemctl != nil && i.o.Systemctl(ctx, "--quiet", "is-active", unit) == nil {
		_ = i.o.Systemctl(ctx, "reload", unit)
	}
}
