package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/cni/upkeep"
	"edgemesh/internal/version"
	"edgemesh/internal/wording"
)

const usage = `Usage:
  edgemesh-cni ipam list [--json]              addresses, their pods and how full the blocks are
  edgemesh-cni ipam release [--force] IP|NAMESPACE/POD
                                               free an address, or all of a pod's; --force
                                               cuts off a running pod
  edgemesh-cni ipam fsck [--repair] [--json]   check the records, and repair them
  edgemesh-cni ipam import DIR                 import the records of host-local or OpenYurt in DIR
  edgemesh-cni version
  edgemesh-cni man DIR                         write the man page into a directory

Options of ipam:
  --data-dir DIR      address records (default ` + conf.DefaultDataDir + `)
  --runtime-dir DIR   where subnet.json is (default ` + conf.DefaultRuntimeDir + `)
  --conf FILE         the runtime's configuration: sets dataDir, runtimeDir and exclude unless an
                      option does, and keepFor and keepOnly for repairs
                      (default ` + defaultConflist + `, if it exists)
Option of import:
  --results DIR       results cached by the runtime, which name the pods
                      (default ` + ipam.DefaultResultsDir + `)

Examples:
  edgemesh-cni ipam list --json
  edgemesh-cni ipam release default/web-0
  edgemesh-cni ipam fsck --repair
  edgemesh-cni ipam import /var/lib/cni/networks/cbr0
`

// defaultConflist is where the agent installs it.
const defaultConflist = "/etc/cni/net.d/10-edgemesh.conflist"

// Exit codes of the operator's commands.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// operator is one command of an operator.
type operator struct {
	out, errOut         io.Writer
	dataDir, runtimeDir string
	results             string
	excluded            []conf.AddrRange
	policy              ipam.Policy // whose addresses --repair keeps reserved
	json, force, repair bool
	arg                 string // the operand; empty if the command takes none
}

// operate runs an operator's command and returns the exit code. args has at least the
// command's name.
func operate(args []string, out, errOut io.Writer) int {
	switch args[0] {
	case "version", "--version":
		if len(args) == 1 {
			if err := version.Print(out, version.Knows{What: "CNI", Versions: specVersions}); err != nil {
				return exitFailed
			}
			return exitOK
		}
		fmt.Fprintf(errOut, "edgemesh-cni: unexpected argument %q\n", args[1])
		return exitUsage
	case "help", "--help", "-h":
		fmt.Fprint(out, usage)
		return exitOK
	case "man":
		if len(args) != 2 {
			fmt.Fprintln(errOut, "edgemesh-cni: man needs a directory")
			return exitUsage
		}
		if err := writeMan(args[1]); err != nil {
			fmt.Fprintf(errOut, "edgemesh-cni: man: %v\n", err)
			return exitFailed
		}
		return exitOK
	case "ipam":
		if len(args) == 1 {
			fmt.Fprint(errOut, usage)
			return exitUsage
		}
		op := operator{out: out, errOut: errOut}
		return op.run(args[1], args[2:])
	}
	fmt.Fprintf(errOut, "edgemesh-cni: unknown command %q%s\n%s", args[0], wording.Offer(args[0], []string{"ipam", "version", "man", "help"}), usage)
	return exitUsage
}

func (op *operator) run(verb string, args []string) int {
	run, operand := op.list, ""
	switch verb {
	case "list":
	case "release":
		run, operand = op.release, "an address or NAMESPACE/POD"
	case "fsck":
		run = op.fsck
	case "import":
		run, operand = op.load, "a directory"
	case "help", "--help", "-h":
		fmt.Fprint(op.out, usage)
		return exitOK
	default:
		fmt.Fprintf(op.errOut, "edgemesh-cni: ipam: unknown command %q%s\n%s", verb, wording.Offer(verb, []string{"list", "release", "fsck", "import", "help"}), usage)
		return exitUsage
	}
	err := op.parse(verb, operand, args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(op.out, usage)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(op.errOut, "edgemesh-cni: ipam %s: %v\n", verb, err)
		return exitUsage
	}
	if err := op.with(verb, run); err != nil {
		fmt.Fprintf(op.errOut, "edgemesh-cni: ipam %s: %v\n", verb, err)
		if errors.Is(err, errOperand) {
			return exitUsage
		}
		return exitFailed
	}
	return exitOK
}

// parse reads options and the operand, in any order.
func (op *operator) parse(verb, operand string, args []string) error {
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	conflist := flags.String("conf", "", "")
	flags.StringVar(&op.dataDir, "data-dir", "", "")
	flags.StringVar(&op.runtimeDir, "runtime-dir", "", "")
	switch verb {
	case "list":
		flags.BoolVar(&op.json, "json", false, "")
	case "release":
		flags.BoolVar(&op.force, "force", false, "")
	case "fsck":
		flags.BoolVar(&op.repair, "repair", false, "")
		flags.BoolVar(&op.json, "json", false, "")
	case "import":
		flags.StringVar(&op.results, "results", ipam.DefaultResultsDir, "")
	}
	var operands []string
	for rest := args; ; {
		if err := flags.Parse(rest); err != nil {
			return err
		}
		if flags.NArg() == 0 {
			break
		}
		operands, rest = append(operands, flags.Arg(0)), flags.Args()[1:]
	}
	switch {
	case operand == "" && len(operands) > 0:
		return fmt.Errorf("unexpected %q", operands[0])
	case operand != "" && len(operands) != 1:
		return fmt.Errorf("needs %s", operand)
	case operand != "":
		op.arg = operands[0]
	}
	return op.configured(*conflist)
}

// configured fills in the plugin's settings from the runtime's configuration. Without
// path, a default configuration that does not exist, or is not ours, is ignored.
func (op *operator) configured(path string) error {
	c := &conf.NetConf{DataDir: conf.DefaultDataDir, RuntimeDir: conf.DefaultRuntimeDir}
	found, err := readConflist(cmp.Or(path, defaultConflist))
	switch {
	case err == nil:
		c = found
	case path != "":
		return err
	case !errors.Is(err, fs.ErrNotExist):
		fmt.Fprintln(op.errOut, "edgemesh-cni:", err)
	}
	op.dataDir, op.runtimeDir = cmp.Or(op.dataDir, c.DataDir), cmp.Or(op.runtimeDir, c.RuntimeDir)
	op.excluded, op.policy = c.Excluded, upkeep.Policy(c)
	return nil
}

// readConflist finds our plugin's configuration in a list.
func readConflist(path string) (*conf.NetConf, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, p := range list.Plugins {
		c, err := conf.ParseNetConf(p)
		if err == nil && c.Type != "edgemesh-cni" {
			continue
		}
		if err == nil {
			err = c.Validate("")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return c, nil
	}
	return nil, fmt.Errorf("%s: does not contain the plugin edgemesh-cni", path)
}

// with runs a verb's command on the store: list without the lock, the others with it.
// Only import and --repair create a missing store.
func (op *operator) with(verb string, run func(*ipam.Store) error) error {
	_, err := os.Stat(op.dataDir)
	missing := errors.Is(err, fs.ErrNotExist) && verb != "import"
	if missing {
		fmt.Fprintf(op.errOut, "edgemesh-cni: %s does not exist: no pod has had an address from it\n", op.dataDir)
	}
	host := podlink.Host{Store: op.dataDir}
	if verb == "list" || missing && !op.repair {
		store, err := ipam.Peek(op.dataDir, host)
		if err != nil {
			return err
		}
		return run(store)
	}
	store, err := ipam.Open(op.dataDir, host, op.policy)
	if err != nil {
		return err
	}
	return errors.Join(run(store), store.Close())
}

// pools are the node's; if they are unknown it prints why and returns none.
func (op *operator) pools() conf.Pools {
	pools, err := conf.LoadSubnet(op.runtimeDir)
	if err != nil {
		fmt.Fprintln(op.errOut, "edgemesh-cni:", err)
	}
	return pools
}

func (op *operator) list(s *ipam.Store) error {
	type entry struct {
		ipam.Record
		State string `json:"state"`
	}
	entries := []entry{}
	for _, r := range s.Records() {
		e := entry{r, "used"}
		switch {
		case r.Torn():
			e.State = "torn"
		case !r.InUse():
			e.State = "kept"
		case s.Abandoned(r): // not that of an ADD in progress
			e.State = "lost"
		}
		entries = append(entries, e)
	}
	pools := op.pools()
	usage := append([]ipam.Usage{}, s.Usage(pools.Blocks, slices.Concat(op.excluded, pools.Reserved))...) // none is [], not null
	if op.json {
		enc := json.NewEncoder(op.out)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"addresses": entries, "pools": usage})
	}
	w := tabwriter.NewWriter(op.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ADDRESS\tSTATE\tSINCE\tPOD\tINTERFACE\tCONTAINER")
	for _, e := range entries {
		since := e.Allocated
		if !e.InUse() {
			since = e.Released
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s/%s\t%s\t%s\n", e.IP, e.State,
			since.Local().Format(time.DateTime), e.Namespace, e.Pod, e.IfName, e.ContainerID)
	}
	for _, u := range usage {
		oldest := ""
		if !u.Oldest.IsZero() {
			oldest = ", oldest kept since " + u.Oldest.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%v: %d usable, %d used, %d kept for deleted pods, %d lost%s\n", u.Blocks, u.Size, u.Used, u.Kept, u.Lost, oldest)
	}
	return w.Flush()
}

func (op *operator) release(s *ipam.Store) error {
	match, err := matcher(op.arg)
	if err != nil {
		return err
	}
	n, err := s.Forget(match, op.force)
	if errors.Is(err, ipam.ErrInUse) {
		return fmt.Errorf("%w; delete the pod, or cut it off with --force", err)
	}
	if err == nil && n == 0 {
		return fmt.Errorf("no record of %s in %s", op.arg, op.dataDir)
	}
	return err
}

var errOperand = errors.New("bad operand")

// matcher selects records by address or by NAMESPACE/POD.
func matcher(arg string) (func(ipam.Record) bool, error) {
	if a, err := netip.ParseAddr(arg); err == nil {
		return func(r ipam.Record) bool { return r.IP == a }, nil
	}
	ns, pod, ok := strings.Cut(arg, "/")
	if !ok || ns == "" || pod == "" {
		return nil, fmt.Errorf("%w: %q is neither an address nor NAMESPACE/POD", errOperand, arg)
	}
	return func(r ipam.Record) bool { return r.Namespace == ns && r.Pod == pod }, nil
}

// errProblems makes fsck fail after its report.
var errProblems = errors.New("problems found; repair them with: edgemesh-cni ipam fsck --repair")

func (op *operator) fsck(s *ipam.Store) error {
	problems := append([]ipam.Problem{}, s.Fsck(op.pools().Blocks)...) // none is [], not null
	bad := false
	for _, p := range problems {
		bad = bad || !p.Harmless
		if !op.json {
			fmt.Fprintln(op.out, strings.TrimPrefix(p.File+": "+p.Text, ": "))
		}
	}
	if op.json {
		if err := json.NewEncoder(op.out).Encode(problems); err != nil {
			return err
		}
	}
	if op.repair {
		return s.Repair()
	}
	if bad {
		return errProblems
	}
	return nil
}

func (op *operator) load(s *ipam.Store) error {
	recs, err := ipam.ReadForeign(op.arg, op.results)
	if err != nil {
		return err
	}
	n, err := s.Import(recs)
	fmt.Fprintf(op.out, "%d records imported from %s\n", n, op.arg)
	return err
}
