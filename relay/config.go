package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"

	agent "edgemesh/internal/config"
	"edgemesh/internal/config/strict"
	"edgemesh/internal/logs"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	program = "edgemesh-relay"
	// defaultConfig is read when neither --config nor --membership is given.
	defaultConfig = "/etc/edgemesh/relay.yaml"
	// defaultStateDir differs from the agent's: they must not share a key.
	defaultStateDir = "/var/lib/edgemesh-relay"
	// defaultMetrics is reachable from this host only.
	defaultMetrics = "127.0.0.1:9470"
)

// config is the relay's configuration, complete and valid.
type config struct {
	file           string // where it was read, "" if from flags
	stateDir       string
	membership     agent.Membership
	joinSecretFile string    // members prove that secret; "" = only those of the membership are served
	signers        []peer.ID // keys whose signed membership alone counts
	signersFile    string    // has more of them, "": none; its end, or another content, ends the relay
	signersText    string    // what it had
	listen         []ma.Multiaddr
	announce       []ma.Multiaddr // empty = addresses of the interfaces
	metricsAddress string         // host:port, mesh:port (endpoint.Mesh), "" = off
	runtimeDir     string         // of this host's agent, whose subnet file has the mesh addresses
	limits         agent.RelayLimits
	log            logs.Config
	level          *slog.LevelVar // of the log; nil: it cannot be changed

	block func(loop string) // tests block loops with it
	keys  identity.Renewal  // which tests choose
}

// document is the file as written, over the defaults.
type document struct {
	StateDir       string                    `json:"stateDir"`
	Signers        []string                  `json:"signers"`
	SignersFile    string                    `json:"signersFile"`
	Listen         []string                  `json:"listen"`
	Announce       []string                  `json:"announce"`
	Membership     agent.Membership          `json:"membership"`
	JoinSecretFile string                    `json:"joinSecretFile"`
	MetricsAddress string                    `json:"metricsAddress"`
	RuntimeDir     string                    `json:"runtimeDir"`
	Limits         agent.RelayLimitsDocument `json:"limits"`
	Log            logs.Config               `json:"log"`
}

// defaults is what an empty file means.
var defaults = document{StateDir: defaultStateDir, MetricsAddress: defaultMetrics, RuntimeDir: agent.DefaultRuntimeDir}

// loadConfig reads the file at path. The error names it and every key to
// fix.
func loadConfig(path string) (config, error) {
	data, err := agent.ReadFile(path)
	if err != nil {
		return config{}, err
	}
	return parseConfig(path, data)
}

// parseConfig is loadConfig for what path has, or will have.
func parseConfig(path string, data []byte) (config, error) {
	bad := mesh.Invalid{File: path}
	doc := defaults
	strict.Unmarshal(data, &doc, &bad)
	if err := bad.Err(); err != nil {
		return config{}, err
	}
	return doc.config(&bad)
}

// membershipConfig is the configuration where only --membership is given.
func membershipConfig(membership string) (config, error) {
	abs, err := filepath.Abs(membership)
	if err != nil {
		return config{}, fmt.Errorf("--membership %s: %w", membership, err)
	}
	doc := defaults
	doc.Membership.File = abs
	return doc.config(&mesh.Invalid{})
}

func (d document) config(bad *mesh.Invalid) (config, error) {
	c := config{
		file:           bad.File,
		stateDir:       agent.Dir(bad, "stateDir", d.StateDir, defaultStateDir),
		membership:     d.Membership,
		joinSecretFile: agent.SecretFile(bad, "joinSecretFile", d.JoinSecretFile),
		signersFile:    agent.SecretFile(bad, "signersFile", d.SignersFile),
		listen:         agent.Listen(bad, "listen", d.Listen, true),
		metricsAddress: agent.HostPort(bad, "metricsAddress", d.MetricsAddress, defaultMetrics),
		runtimeDir:     agent.Dir(bad, "runtimeDir", d.RuntimeDir, agent.DefaultRuntimeDir),
		limits:         d.Limits.Check(bad, "limits"),
		log:            agent.Log(bad, d.Log),
	}
	c.signersText = readSigners(c.signersFile)
	own := func(key string) bool { return slices.Contains(d.Signers, key) } // pinned in either place
	c.signers = agent.Signers(bad, append(d.Signers, slices.DeleteFunc(strings.Fields(c.signersText), own)...))
	pins := len(d.Signers) > 0 || d.SignersFile != ""
	switch {
	case d.JoinSecretFile != "" && d.Membership.Kubernetes != nil:
		bad.Addf("joinSecretFile", "is for a relay without access to the API; remove it, or membership.kubernetes")
	case d.JoinSecretFile != "" && pins:
		bad.Addf("joinSecretFile", "is of no use where signers pins a key: remove one of them")
	case !d.Membership.None() || d.JoinSecretFile == "" && !pins:
		d.Membership.Check(bad)
	}
	if len(d.Listen) == 0 {
		c.listen = agent.AllAddresses(agent.RelayPort)
	}
	c.announce = agent.Announced(bad, "announce", d.Announce, c.listen)
	return c, bad.Err()
}

// byStatement reports whether statements alone say who is served.
func (c config) byStatement() bool {
	return c.pins() && c.membership.None()
}

// pins reports whether pinned keys alone are believed, also those that signersFile does not have yet.
func (c config) pins() bool { return len(c.signers) > 0 || c.signersFile != "" }

// readSigners returns what signersFile has; "": nothing yet.
func readSigners(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

// endsApart is within which time the relays of a cluster end whose keys change.
const endsApart = 2 * time.Minute

// followSigners ends the relay once signersFile has other keys: it starts again with them. One that
// serves waits at random: others serve meanwhile.
func (c config) followSigners(ctx context.Context, serves func() bool, end func(), log *slog.Logger) {
	for refused := ""; wake.Sleep(ctx, time.Second); {
		now := readSigners(c.signersFile)
		if now == c.signersText || now == "" || now == refused {
			continue
		}
		bad := mesh.Invalid{File: c.signersFile}
		if agent.Signers(&bad, strings.Fields(now)); bad.Err() == nil {
			log.Info("signersFile has other keys: the relay ends, to be started with them", "file", c.signersFile, "within", endsApart)
			if serves() && (!wake.Sleep(ctx, rand.N(endsApart)) || readSigners(c.signersFile) != now) {
				continue // with what it has by now
			}
			end()
			return
		}
		refused = now
		log.Warn("signersFile is not usable: the relay continues with the keys it has", "err", bad.Err())
	}
}

// withFile puts the configuration file before an error about one of its keys.
func withFile(c config, err error) error {
	if c.file == "" {
		return err
	}
	return fmt.Errorf("%s: %w", c.file, err)
}

// errLocked means that another relay uses the state directory.
var errLocked = errors.New("another relay runs on this state directory, so with the same peer ID; stop it, or set another stateDir here")

// lockDir locks a state directory, which exists, until unlock or the end of this
// process: of two relays with one key each would get half of the members. The
// directory itself is locked, so it may be read-only. The error wraps errLocked or
// the file system's.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return func() { f.Close() }, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLocked
	}
	return nil, fmt.Errorf("%s: %w", dir, err)
}
