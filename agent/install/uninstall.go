package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/keyfile"
	"edgemesh/internal/placed"
)

// Uninstall stops the agent and removes what it set up and what Install wrote. The node is
// as it was before, except for the key and the pods' addresses, which Purge removes too.
// It continues after errors. The error may be ErrNotInstalled.
func Uninstall(ctx context.Context, o Options) error {
	i := newInstaller(o)
	if o.Purge && o.KeepNetwork {
		return fmt.Errorf("%w: --purge and --keep-network exclude each other", ErrBadOption)
	}
	if err := i.load(); err != nil {
		return err
	}
	i.host = i.distribution()
	if o.Files != nil && !o.KeepNetwork && i.rec.Form != DaemonSet {
		if err := o.Files(); err != nil { // an agent runs there: all of it stays for another attempt
			return err
		}
	}
	var errs []error
	nodeIP := map[string]string{}
	if o.KeepNetwork {
		nodeIP = i.nodeIPFiles()
	} else if found, err := i.takeNodeIP(); found || err != nil { // before the addresses go
		errs = append(errs, err, i.restartKubelet(ctx))
	}
	switch i.rec.Form {
	case Systemd:
		errs = append(errs, i.stopUnit(ctx))
	case StaticPod:
		errs = append(errs, i.stopPod())
	}
	if o.KeepNetwork {
		i.Say("kept     interfaces, routes, rules and the CNI configuration")
	} else if i.rec.Form == DaemonSet { // the agent is the cluster's
		i.Done()
		return errors.Join(append(errs, os.Remove(i.recordPath()))...)
	} else if o.Cleanup == nil {
		i.Todo = append(i.Todo, "interfaces, routes and rules of a running agent are still there: stop it, then run "+
			"`edgemesh-agent cleanup` on the host, or reboot it")
	} else if err := o.Cleanup(ctx); err != nil {
		// The binary must stay for another attempt.
		return errors.Join(append(errs, err)...)
	}
	for path := range nodeIP {
		delete(i.rec.Files, path)
	}
	errs = append(errs, i.Take(o.Purge), i.include())
	if o.Purge {
		errs = append(errs, ipam.Purge(i.Path(o.DataDir)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if i.rec.Form == Systemd && o.Systemctl != nil {
		if err := o.Systemctl(ctx, "daemon-reload"); err != nil {
			return err
		}
	}
	if len(nodeIP) > 0 { // kubelet keeps its address, which the DaemonSet's agent keeps up
		i.Say("kept     kubelet's --node-ip (`edgemesh-agent install --form daemonset --node-ip=off` takes it back)")
		i.rec = record{Form: DaemonSet, Record: placed.Record{Files: nodeIP}, NodeIP: i.rec.NodeIP, EdgeCore: i.rec.EdgeCore}
		i.Done()
		return i.save()
	}
	if err := os.Remove(i.recordPath()); err != nil {
		return err
	}
	if exists(i.Path(filepath.Join(o.StateDir, keyfile.Name))) {
		i.Say("kept     %s (the node's key, so it can come back as the same node)", o.StateDir)
	} else if os.Remove(i.Path(o.StateDir)) == nil {
		i.Say("removed  %s", o.StateDir)
	} else {
		i.Say("kept     %s (other files are in it)", o.StateDir)
	}
	i.Done()
	return nil
}

func (i *installer) stopUnit(ctx context.Context) error {
	if i.o.Systemctl == nil {
		// The link of `systemctl enable`; a unit cannot be disabled once its file is gone.
		err := os.Remove(i.Path(wantsPath))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		i.Todo = append(i.Todo, "systemctl stop "+UnitName, "systemctl daemon-reload")
		return err
	}
	if err := i.o.Systemctl(ctx, "disable", "--now", UnitName); err != nil {
		return err
	}
	i.Say("stopped  %s", UnitName)
	return nil
}

// stopPod removes the static pod's file, so that kubelet stops it.
func (i *installer) stopPod() error {
	for path := range i.rec.Files {
		if filepath.Base(path) != podName {
			continue
		}
		if err := os.Remove(i.Path(path)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		i.Say("removed  %s", path)
	}
	return nil
}
