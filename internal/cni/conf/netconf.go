package conf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"edgemesh/internal/membership/mesh"
)

// Values of NetConf.KeepOnly: whose addresses stay reserved after DEL.
const (
	KeepAll         = "all"         // every pod's (the default)
	KeepStatefulSet = "statefulset" // only pods named like a StatefulSet's, NAME-ORDINAL
	KeepNone        = "none"        // none: an address is free immediately
)

// ErrNetConf means that the network configuration is invalid.
var ErrNetConf = errors.New("invalid network configuration")

// ErrArgs means that an environment variable of the specification is invalid.
var ErrArgs = errors.New("invalid environment variable")

// NetConf is the network configuration that a runtime passes on standard input. Only
// cniVersion, name and type are required.
type NetConf struct {
	types.PluginConf

	RuntimeDir string `json:"runtimeDir"` // where subnet.json is; DefaultRuntimeDir
	DataDir    string `json:"dataDir"`    // where the address records are; DefaultDataDir
	Bridge     string `json:"bridge"`     // DefaultBridge

	// Exclude lists addresses, prefixes or ranges (first-last) that no pod gets.
	Exclude []string `json:"exclude"`
	// KeepFor is how long a deleted pod's address stays reserved for its name, as a Go
	// duration ("72h"); empty means until the pool runs short.
	KeepFor string `json:"keepFor"`
	// KeepOnly is one of the Keep constants.
	KeepOnly string `json:"keepOnly"`
	// PromiscMode puts the bridge into promiscuous mode.
	PromiscMode bool `json:"promiscMode"`
	// AllowSpoofing disables the source filter, for kernels without BPF.
	AllowSpoofing bool `json:"allowSpoofing"`

	RuntimeConfig struct {
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`

	// The rest is derived by Validate.
	Keep     time.Duration `json:"-"` // 0 means no limit
	Excluded []AddrRange   `json:"-"`
	Wanted   []netip.Addr  `json:"-"` // requested addresses, at most one per family
	Pod      PodArgs       `json:"-"`

	mistyped error // a value of the wrong type, which Validate refuses
}

// AddrRange is an inclusive range of addresses of one family.
type AddrRange struct{ First, Last netip.Addr }

// Contains reports whether a is in r.
func (r AddrRange) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// ParseNetConf reads a network configuration and fills in defaults. It checks what even
// DEL needs; Validate checks the rest. Errors wrap ErrNetConf and name the key.
func ParseNetConf(stdin []byte) (*NetConf, error) {
	c := &NetConf{}
	if err := json.Unmarshal(stdin, c); err != nil {
		if err := delNeeds(stdin); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNetConf, inJSON(err))
		}
		c.mistyped = fmt.Errorf("%w: %w", ErrNetConf, inJSON(err))
	}
	c.RuntimeDir = cmp.Or(c.RuntimeDir, DefaultRuntimeDir)
	c.DataDir = cmp.Or(c.DataDir, DefaultDataDir)
	c.Bridge = cmp.Or(c.Bridge, DefaultBridge)
	c.KeepOnly = cmp.Or(c.KeepOnly, KeepAll)
	if !strings.HasPrefix(c.DataDir, "/") {
		return nil, fmt.Errorf("%w: dataDir: %q is not an absolute path", ErrNetConf, c.DataDir)
	}
	return c, nil
}

// delNeeds says why a configuration with a value of the wrong type is useless even for
// DEL. nil means that it is usable: encoding/json has filled in the rest.
func delNeeds(stdin []byte) error {
	var needed struct {
		Name    string `json:"name"`
		DataDir string `json:"dataDir"`
	}
	return json.Unmarshal(stdin, &needed)
}

// inJSON puts a type error of encoding/json into the terms of the file's author.
func inJSON(err error) error {
	var t *json.UnmarshalTypeError
	if !errors.As(err, &t) || t.Field == "" {
		return err
	}
	want := "an object"
	switch t.Type.Kind() {
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	case reflect.Slice:
		want = "a list"
	}
	return fmt.Errorf("%s: must be %s, not of the type %s", strings.TrimPrefix(t.Field, "PluginConf."), want, t.Value)
}

// Validate checks and parses the options and CNI_ARGS. Errors wrap ErrNetConf,
// or ErrArgs.
func (c *NetConf) Validate(cniArgs string) error {
	if c.mistyped != nil {
		return c.mistyped
	}
	if !strings.HasPrefix(c.RuntimeDir, "/") {
		return fmt.Errorf("%w: runtimeDir: %q is not an absolute path", ErrNetConf, c.RuntimeDir)
	}
	if err := utils.ValidateInterfaceName(c.Bridge); err != nil {
		return fmt.Errorf("%w: bridge: %q is not an interface name", ErrNetConf, c.Bridge)
	}
	if !slices.Contains([]string{KeepAll, KeepStatefulSet, KeepNone}, c.KeepOnly) {
		return fmt.Errorf("%w: keepOnly: %q is not one of %s, %s, %s",
			ErrNetConf, c.KeepOnly, KeepAll, KeepStatefulSet, KeepNone)
	}
	if c.KeepFor != "" {
		d, err := time.ParseDuration(c.KeepFor)
		if err != nil || d <= 0 {
			return fmt.Errorf("%w: keepFor: %q is not a positive duration such as 72h", ErrNetConf, c.KeepFor)
		}
		c.Keep = d
	}
	for _, s := range c.Exclude {
		r, err := parseRange(s)
		if err != nil {
			return fmt.Errorf("%w: exclude: %w", ErrNetConf, err)
		}
		c.Excluded = append(c.Excluded, r)
	}
	pod, argIPs, err := parseArgs(cniArgs)
	if err != nil {
		return err
	}
	c.Pod = pod
	c.Wanted, err = wanted(c.RuntimeConfig.IPs, c.Args.CNI.IPs, argIPs)
	return err
}

// Keeps is the KeepOnly policy: whether a deleted pod's address stays reserved.
func (c *NetConf) Keeps(pod string) bool {
	switch c.KeepOnly {
	case KeepNone:
		return false
	case KeepStatefulSet:
		return StatefulSetPod(pod)
	}
	return true
}

// wanted merges the three forms of a request for an address. The capability wins over args, and
// args over CNI_ARGS; two addresses of one family in the same place are an error.
func wanted(lists ...[]string) ([]netip.Addr, error) {
	sources := []struct {
		name string
		err  error
	}{{"runtimeConfig.ips", ErrNetConf}, {"args.cni.ips", ErrNetConf}, {"CNI_ARGS: IP", ErrArgs}}
	for i, list := range lists {
		var out []netip.Addr
		for _, s := range list {
			a, err := parseAddr(s)
			if err != nil {
				return nil, fmt.Errorf("%w: %s: %w", sources[i].err, sources[i].name, err)
			}
			for _, b := range out {
				if b.Is4() == a.Is4() {
					return nil, fmt.Errorf("%w: %s: %s and %s are of the same family", sources[i].err, sources[i].name, b, a)
				}
			}
			out = append(out, a)
		}
		if len(out) > 0 {
			return out, nil
		}
	}
	return nil, nil
}

// parseAddr accepts an address with or without a prefix length.
func parseAddr(s string) (netip.Addr, error) {
	host, _, _ := strings.Cut(strings.TrimSpace(s), "/")
	a, err := netip.ParseAddr(host)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

func parseRange(s string) (AddrRange, error) {
	if first, last, ok := strings.Cut(s, "-"); ok {
		a, errA := parseAddr(first)
		b, errB := parseAddr(last)
		if errA != nil || errB != nil || a.Is4() != b.Is4() || b.Less(a) {
			return AddrRange{}, fmt.Errorf("%q is not a range first-last", s)
		}
		return AddrRange{a, b}, nil
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return AddrRange{}, fmt.Errorf("%q is not a prefix", s)
		}
		return AddrRange{p.Masked().Addr(), mesh.LastAddr(p)}, nil
	}
	a, err := parseAddr(s)
	return AddrRange{a, a}, err
}
