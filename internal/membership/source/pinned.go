package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/seldom"
	"edgemesh/internal/wake"
)

const (
	// StatementsFile, in the state directory, has the signed statements that this program has accepted.
	StatementsFile = "statements"
	// SignedSuffix is what the name of the file beside cluster.yaml ends with that has its statements.
	SignedSuffix = ".signed"
	// lookEvery is how often that file is looked at, together how long several changes wait for each other.
	lookEvery, together = time.Second, 200 * time.Millisecond
	// keepEvery is how often what a disk refused is written again.
	keepEvery = time.Minute
	// allSigned is when a key that signs has signed every member, allHeard when this program has heard of them: one exchange may
	// have few statements, or old ones.
	allSigned, allHeard = 24 * time.Hour, 10 * time.Minute
)

// Pin returns src as far as the statements in book let it count, and has the book keep them in stateDir. Where src is None, all count
// that are in the book. key is this program's, self this node's name, "" for a relay.
func Pin(src Source, book *signed.Book, m config.Membership, key crypto.PrivKey, stateDir, self string, log *slog.Logger) *Pinned {
	load(book, key, stateDir, log)
	p := &Pinned{Source: src, book: book, self: self, log: log}
	if _, p.alone = src.(None); p.alone {
		p.snapshot = filepath.Join(stateDir, snapshot.File)
		if s, err := snapshot.Load(stateDir); err == nil {
			p.former = s.Admitted().Nodes
		}
	}
	if id, failed := peer.IDFromPrivateKey(key); failed == nil {
		p.id = mesh.PeerID(id.String())
	}
	if m.File != "" {
		p.beside = m.File + SignedSuffix
	}
	return p
}

// load has the book keep its statements in stateDir, sealed for this program's key.
func load(book *signed.Book, key crypto.PrivKey, stateDir string, log *slog.Logger) {
	raw, err := key.Raw()
	secret := sha256.Sum256(append([]byte("edgemesh-statements"), raw...))
	if err = errors.Join(err, book.Load(filepath.Join(stateDir, StatementsFile), secret[:])); err != nil {
		log.Warn("some of the signed statements that were kept do not count, after signers was changed for instance", "file", filepath.Join(stateDir, StatementsFile), "err", err)
	}
}

// Pinned is a source whose word counts only where a pinned key has signed it.
type Pinned struct {
	Source
	book     *signed.Book
	alone    bool        // statements alone say who is a member
	former   []mesh.Node // where alone: members of the source before, until one says something about them, as after an upgrade
	all      time.Time   // since when allSigned has passed; zero: it has not
	snapshot string      // has these
	beside   string      // the file beside cluster.yaml, "": there is none
	self     string
	id       mesh.PeerID // this program's
	log      *slog.Logger
	said     seldom.Log

	mu    sync.Mutex // held while a State is handed out
	last  mesh.State // as the source has it
	have  bool
	hand  func(mesh.State) // Watch's onState
	next  <-chan struct{}  // closed when statements change that last was not counted with
	stamp fs.FileInfo      // of beside, as it was read
}

func (p *Pinned) Start(ctx context.Context) (s mesh.State, warning, err error) {
	s, warning, err = p.Source.Start(ctx)
	if err != nil {
		return s, warning, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read()
	return p.starting(s, p.count(s)), warning, nil
}

// starting is out, whatever statements say against this node where the source has it: that may have been lifted, or its new key
// signed, and only a running node learns of it. Until then the others refuse it.
func (p *Pinned) starting(s, out mesh.State) mesh.State {
	n, ok := s.Node(p.self)
	if !ok {
		return out
	}
	for i := range out.Nodes {
		if x := &out.Nodes[i]; x.Name == p.self && n.PeerID == p.id && x.PeerID != p.id {
			x.PeerID = p.id
		}
	}
	out.Banned = slices.DeleteFunc(out.Banned, func(who string) bool {
		return (who == p.self || who == string(p.id)) && !slices.Contains(s.Banned, who)
	})
	return out
}

// Watch hands out what counts, also when only statements have changed.
func (p *Pinned) Watch(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	var following sync.WaitGroup
	defer following.Wait()
	p.mu.Lock()
	p.hand = onState
	p.mu.Unlock()
	following.Go(func() { p.follow(ctx) })
	p.Source.Watch(ctx, func(s mesh.State) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.read()
		onState(p.count(s))
	}, onErr)
}

// Holds is the book's.
func (p *Pinned) Holds(statement string) bool { return p.book.Holds(statement) }

// Show takes what a peer shows of itself, and calls come with its name where that makes it a member. No State is handed out meanwhile. The
// error says why it is not a member.
func (p *Pinned) Show(statement string, id peer.ID, come func(name string)) error {
	defer p.add("a node at the door", nil) // the disk has time
	p.mu.Lock()
	defer p.mu.Unlock()
	name, err := p.book.Show(statement, id)
	if err == nil {
		come(name)
	}
	return err
}

func (p *Pinned) follow(ctx context.Context) {
	look, keep := time.NewTicker(lookEvery), time.NewTicker(keepEvery)
	defer look.Stop()
	defer keep.Stop()
	next := p.changed()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			p.mu.Lock()
			p.read()
			p.mu.Unlock()
		case <-keep.C:
			p.add(p.String(), nil)
			p.mu.Lock()
			if !p.all.IsZero() {
				p.hand(p.count(p.last))
			}
			p.mu.Unlock()
		case <-next:
			if !wake.Sleep(ctx, together) {
				return
			}
			p.mu.Lock()
			if p.have {
				p.hand(p.count(p.last))
			}
			p.mu.Unlock()
			next = p.changed()
		}
	}
}

// changed returns what is closed by the first change since the last count.
func (p *Pinned) changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.have {
		return p.next
	}
	return p.book.Changed().Next()
}

// read takes the statements beside cluster.yaml, if the file has changed. The caller holds mu.
func (p *Pinned) read() {
	if p.beside == "" {
		return
	}
	now, err := os.Stat(p.beside)
	if errors.Is(err, fs.ErrNotExist) || err == nil && p.stamp != nil && now.ModTime().Equal(p.stamp.ModTime()) && now.Size() == p.stamp.Size() && os.SameFile(now, p.stamp) {
		return // without one, others pass statements on
	}
	var texts []string
	if err == nil {
		texts, err = signed.ReadFile(p.beside)
	}
	if err != nil {
		p.warn("signed statements cannot be read; those that are known stay in force", p.beside, err)
		return
	}
	p.stamp = now
	p.add(p.beside, texts)
}

func (p *Pinned) add(from string, texts []string) {
	_, err := p.book.Add(texts...)
	if errors.Is(err, signed.ErrKept) {
		p.warn("signed statements are in force, but not kept", from, err)
	} else if err != nil {
		p.warn("signed statements are refused: they are forged, or signers lacks the key that has signed them", from, err)
	}
}

// count is s as far as it counts. The caller holds mu.
func (p *Pinned) count(s mesh.State) mesh.State {
	p.last, p.have = s, true
	p.add(p.String(), s.Signed)
	if signer, err := signed.ParseSigner(s.Signer); err == nil && slices.Contains(p.book.Keys(), signer) {
		_, _ = p.book.Add(s.News...) // a delegate's bans count where its key is pinned
	}
	p.next = p.book.Changed().Next()
	if p.alone {
		s.Nodes, s.Controllers = p.book.Members(), nil
		for _, key := range p.book.Keys() {
			s.Controllers = append(s.Controllers, mesh.PeerID(key.String()))
		}
	}
	out, problems := p.book.Apply(s, p.self)
	out.Nodes = append(out.Nodes, p.unsaid(out.Nodes)...)
	said := p.last
	said.Signed, said.News, out.Source = nil, nil, &said
	for i, bad := range problems {
		if i == mostLines {
			p.log.Warn("more nodes are not members as the source has them", "count", len(problems)-i)
			break
		}
		p.warn("a node is not a member, or not as the source has it", p.String(), bad)
	}
	return out
}

// unsaid are the former members that no statement is about, without those whose key nodes have. Who
// signs all has signed those who are members within allSigned. The caller holds mu.
func (p *Pinned) unsaid(nodes []mesh.Node) []mesh.Node {
	former := p.book.Unsaid(p.former)
	switch {
	case len(former) == 0 || p.book.Since() <= allSigned:
		p.all = time.Time{}
	case p.all.IsZero():
		p.all = time.Now()
	case time.Since(p.all) > allHeard:
		p.log.Info("members of before that nobody has signed are served no longer", "count", len(former))
		p.all, former = time.Time{}, nil
	}
	if len(former) == 0 {
		if p.former != nil { // or they would count again once what is said now no longer does
			p.former, _ = nil, os.Remove(p.snapshot)
		}
		return nil
	}
	has := make(map[mesh.PeerID]bool, len(nodes))
	for i := range nodes {
		has[nodes[i].PeerID] = true
	}
	return slices.DeleteFunc(former, func(n mesh.Node) bool { return has[n.PeerID] })
}

// warn logs once a minute and cause.
func (p *Pinned) warn(what, from string, err error) {
	if p.said.Due(what + from + err.Error()) {
		p.log.Warn(what, "source", from, "err", err)
	}
}
