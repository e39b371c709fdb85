package install

import (
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"edgemesh/agent/cniconf"
	"edgemesh/agent/plugins"
	"edgemesh/internal/config"
	"edgemesh/internal/version"
)

// fits refuses a host on which the agent would not work, before anything is written: another pod network, programs for
// another processor, a kernel without TUN, the state of a version that this one is too old for. The error wraps ErrUnfitHost.
func (i *installer) fits(configuration string) error {
	if i.o.Form == DaemonSet {
		return nil
	}
	errs := []error{i.otherNetwork(configuration), version.CheckState(i.Path(i.o.StateDir))}
	if i.o.Form == Systemd {
		errs = append(errs, i.processor())
	}
	if i.o.TUN != nil {
		errs = append(errs, i.o.TUN())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrUnfitHost, err)
	}
	return nil
}

// otherNetwork refuses to install beside another pod network unless the configuration keeps it: half of the pods would be
// in each.
func (i *installer) otherNetwork(configuration string) error {
	cfg, err := i.parse([]byte(configuration))
	if err != nil || cfg.CNIMode == config.CNIKeep || cfg.CNIConfDir == "" {
		return nil // a broken configuration is reported where it is used
	}
	if f, found := plugins.Rival(i.Path(cfg.CNIConfDir)); found {
		return fmt.Errorf("%s has the pods of this host (%s): to leave them with it, set cniMode: keep in %s; to replace it, drain the node, "+
			"uninstall that network and remove its files from %s", f.Name, strings.Join(f.Evidence, ", "), config.DefaultPath, cfg.CNIConfDir)
	}
	return nil
}

// machines are the processors that programs can be for. There is no release for 386: the tests run there, for its 32 bits.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "arm": elf.EM_ARM, "386": elf.EM_386}

// processor refuses a plugin for another processor than this program's, as after copying the wrong file. What is no ELF file
// is left to the kernel.
func (i *installer) processor() error {
	path := filepath.Join(filepath.Dir(i.o.Binary), cniconf.PluginName)
	program, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer program.Close()
	is := program.Machine
	if want, known := machines[runtime.GOARCH]; known && is != want {
		return fmt.Errorf("%s is for another processor (%s) than this host's (%s): take both programs from the archive for linux/%s",
			path, is, want, runtime.GOARCH)
	}
	return nil
}
