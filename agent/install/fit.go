package install

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
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
	errs := []error{i.otherNetwork(configuration), version.CheckState(i.path(i.o.StateDir))}
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
	cfg, err := config.Parse(i.path(config.DefaultPath), []byte(configuration), cmp.Or(i.o.NodeName, "node"))
	if err != nil || cfg.CNIMode == config.CNIKeep || cfg.CNIConfDir == "" {
		return nil // a broken configuration is reported where it is used
	}
	if f, found := plugins.Rival(i.path(cfg.CNIConfDir)); found {
		return fmt.Errorf("%s has the pods of this host (%s): to leave them with it, set cniMode: keep in %s; to replace it, drain the node, "+
			"uninstall that network and remove its files from %s", f.Name, strings.Join(f.Evidence, ", "), config.DefaultPath, cfg.CNIConfDir)
	}
	return nil
}

// machines are the processors that programs can be for. There is no release for 386: the tests run there, for its 32 bits.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "arm": elf.EM_ARM, "386": elf.EM_386}

// machine reads from the header of an ELF file for which processor it is. What is no such file is an error. To read more of it,
// as elf.Open does, takes code that unpacks debug information.
func machine(path string) (elf.Machine, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var head [20]byte // up to e_machine
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return 0, err
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	if string(head[:len(elf.ELFMAG)]) != elf.ELFMAG {
		return 0, fmt.Errorf("%s is no ELF file", path)
	}
	return elf.Machine(order.Uint16(head[18:])), nil
}

// processor refuses a plugin for another processor than this program's, as after copying the wrong file. What is no ELF file
// is left to the kernel.
func (i *installer) processor() error {
	path := filepath.Join(filepath.Dir(i.o.Binary), cniconf.PluginName)
	is, err := machine(path)
	if err != nil {
		return nil
	}
	if want, known := machines[runtime.GOARCH]; known && is != want {
		return fmt.Errorf("%s is for another processor (%s) than this host's (%s): take both programs from the archive for linux/%s",
			path, is, want, runtime.GOARCH)
	}
	return nil
}
